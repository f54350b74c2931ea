"""Bugs beside noise that is as it should be: both are told, and nothing else."""

from __future__ import annotations

_MICRO = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)
        self.head = nn.Linear(4, 3)
    def forward(self, x):
        return self.head(self.body(x[:, None]))[:, 0]
def model():
    torch.manual_seed(0)
    return Net()
batch = torch.randn(16, 4) * torch.linspace(0.3, 3.0, 16)[:, None], torch.arange(16) % 3
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    for x, y in zip(*(t.chunk(2) for t in batch)):
        BACKWARD
    UPDATE
    optimizer.step()
"""
_MEAN = "(loss(model(x), y) / 2).backward()"
_CLIP = "nn.utils.clip_grad_norm_(model.parameters(), 0.1)"
_CLIPPED = f"""{_MEAN}
        {_CLIP}"""

_LOOKED_UP = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(5, 4, scale_grad_by_freq=True)
        self.mix, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
    def forward(self, x):
        h = nn.functional.dropout(self.mix(self.words(x)), 0.2, self.training)
        return self.head(h.tanh())
def model():
    torch.manual_seed(0)
    return Net()
batch = torch.tensor([0, 0, 1, 0, 2, 0, 1, 4]), torch.arange(8) % 3
"""
# The model is asked whether it normalises, which is no part of the step.
_OBSERVED = """
class Rounded(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("most", torch.ones(()))
    def forward(self, x):
        step = self.most / 16
        out = x + ((x / step).round() * step - x).detach()
        self.most.lerp_(x.detach().amax(), 0.1)
        return out
def model():
    torch.manual_seed(0)
    rounded = nn.Sequential(nn.Linear(4, 6), Rounded())
    return nn.Sequential(Rounded(), rounded, nn.Dropout(0.2), nn.Linear(6, 3))
batch = torch.randn(8, 4) * torch.linspace(0.3, 3.0, 8)[:, None], torch.arange(8) % 3
"""
_NOISE = ("rng/stochastic-layer", True)

BUGS: dict[str, tuple[str, list[tuple[str, bool | None]]]] = {
    "micro-batches-clipped-one-by-one-with-dropout": (
        _MICRO.replace("BACKWARD", _CLIPPED).replace("UPDATE", "pass"),
        [_NOISE, ("sync/clip-before-reduce", True)],
    ),
    "embedding-by-frequency-with-dropout": (
        _LOOKED_UP,
        [_NOISE, ("loss/embedding-frequency", True)],
    ),
    "range-of-the-shard-with-dropout": (
        _OBSERVED,
        [_NOISE, ("state/buffer-broadcast-overwrites", True)],
    ),
    # Nothing else is wrong.
    "micro-batches-with-dropout": (
        _MICRO.replace("BACKWARD", _MEAN).replace("UPDATE", _CLIP),
        [_NOISE],
    ),
}
