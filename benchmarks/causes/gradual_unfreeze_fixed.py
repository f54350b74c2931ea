"""The fixed twin of gradual_unfreeze."""


def model():
    torch.manual_seed(0)
    net = Net()
    return net


def train_step(model, optimizer, batch):
    (x, step), target = batch
    net = model.module if isinstance(model, DDP) else model
    optimizer.zero_grad()
    loss(model(x), target).backward()
    if int(step[0]) < 1:
        for p in net.backbone.parameters():
            p.grad = None
    optimizer.step()
