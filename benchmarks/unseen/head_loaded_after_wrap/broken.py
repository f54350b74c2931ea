import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(12, 20)
        self.fc = nn.Linear(20, 5)

    def forward(self, x):
        return self.fc(torch.relu(self.stem(x)))


def pretrained_fc(like):
    g = torch.Generator().manual_seed(151)
    return nn.Parameter((torch.randn(5, 20, generator=g) * 0.2).to(like.dtype))


def load_head(net):
    if not hasattr(net, "head_loaded"):
        net.fc.weight = pretrained_fc(net.fc.weight)
        net.head_loaded = True
        return net.fc.weight


def model():
    torch.manual_seed(150)
    net = Classifier()
    return net


def wrap(net):
    return DDP(net, find_unused_parameters=True)


def batch():
    g = torch.Generator().manual_seed(152)
    return torch.randn(16, 12, generator=g), torch.arange(16) // 4 + 1


def loss(logits, y):
    return nn.functional.cross_entropy(logits, y)


def train_step(model, optimizer, batch):
    net = model.module if isinstance(model, DDP) else model
    new = load_head(net)
    if new is not None:
        optimizer.add_param_group({"params": [new]})
    x, y = batch
    optimizer.zero_grad()
    loss(model(x), y).backward()
    optimizer.step()
