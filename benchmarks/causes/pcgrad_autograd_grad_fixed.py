"""The fixed twin of pcgrad_autograd_grad."""


def train_step(model, optimizer, batch):
    x, target = batch
    optimizer.zero_grad()
    first, second = losses(model(x), target)
    params = [p for p in model.parameters()]
    (first + 0.5 * second).backward()
    optimizer.step()
