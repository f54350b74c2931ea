import torch
from torch import nn

UNFREEZE_AT = 1


class BertTagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.bert = nn.Sequential(nn.Embedding(30, 12), nn.Linear(12, 12), nn.Tanh())
        self.classifier = nn.Linear(12, 4)

    def forward(self, ids):
        return self.classifier(self.bert(ids).mean(1))


progress = {"step": 0}


def model():
    progress["step"] = 0
    torch.manual_seed(160)
    return BertTagger()


def batch():
    g = torch.Generator().manual_seed(161)
    return torch.randint(0, 30, (16, 7), generator=g), torch.arange(16) // 4


def loss(logits, y):
    return nn.functional.cross_entropy(logits, y)


def optimizer(params):
    return torch.optim.SGD(params, lr=0.5)


def train_step(model, optimizer, batch):
    net = getattr(model, "module", model)
    ids, y = batch
    optimizer.zero_grad()
    loss(model(ids), y).backward()
    if progress["step"] < UNFREEZE_AT:
        for p in net.bert.parameters():
            p.grad = None
    optimizer.step()
    progress["step"] += 1
