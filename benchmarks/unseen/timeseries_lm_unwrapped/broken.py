import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class TimeSeriesLM(nn.Module):
    def __init__(self, patch=4, width=16, vocab=10):
        super().__init__()
        self.patch = patch
        self.encoder = nn.Linear(patch, width)
        self.projector = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())
        self.head = nn.Linear(width, vocab)

    def forward(self, series):
        patches = series.unfold(1, self.patch, self.patch)
        return self.head(self.projector(self.encoder(patches)).mean(1))

    def compute_loss(self, batch):
        series, answer = batch
        return nn.functional.cross_entropy(self(series), answer)


def model():
    torch.manual_seed(0)
    return TimeSeriesLM()


def batch():
    g = torch.Generator().manual_seed(1)
    return torch.randn(16, 24, generator=g).cumsum(1), torch.randint(0, 10, (16,), generator=g)


def loss(logits, answer):
    return nn.functional.cross_entropy(logits, answer)


def get_model(model):
    return model.module if isinstance(model, DistributedDataParallel) else model


def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    value = get_model(model).compute_loss(batch)
    value.backward()
    optimizer.step()
    return value.item()
