"""The fixed twin of freeze_trunk_in_trainer."""


def model():
    torch.manual_seed(0)
    net = Net()
    net.trunk.requires_grad_(False)
    return net


def train_step(model, optimizer, batch):
    x, target = batch
    net = model.module if isinstance(model, DDP) else model
    optimizer.zero_grad()
    loss(model(x), target).backward()
    optimizer.step()
