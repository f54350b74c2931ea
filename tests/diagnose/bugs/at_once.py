"""Bugs of buffers that a step writes and goes by before it ends, as in __init__."""

from __future__ import annotations

_COUNTED = """
from torch.nn.parallel import DistributedDataParallel
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 5)
        self.register_buffer("seen", torch.ones(5))
    def forward(self, x):
        return self.body(x)
model = Net()
batch = torch.arange(32.0).view(8, 4) / 9, torch.tensor([0, 0, 0, 1, 2, 2, 3, 4])
def wrap(model):
    return DistributedDataParallel(model, broadcast_buffers=SENT)
def train_step(model, optimizer, batch):
    x, y = batch
    net = getattr(model, "module", model)
    WRITE
    prior = (net.seen / net.seen.sum()).log()
    optimizer.zero_grad()
    logged = nn.functional.cross_entropy(model(x) - prior, y)
    logged.backward()
    optimizer.step()
"""
_OWN = "net.seen.add_(torch.bincount(y, minlength=5))"
_ANEW = "net.seen = 0.9 * net.seen + torch.bincount(y, minlength=5)"
_OF_ALL = """counts = torch.bincount(y, minlength=5)
    if dist.is_initialized():
        dist.all_reduce(counts)
    net.seen.add_(counts)"""


def _counted(write: str, *, sent: bool) -> str:
    source = _COUNTED.replace("WRITE", write).replace("SENT", str(sent))
    return "import torch.distributed as dist\n" + source


BUGS: dict[str, tuple[str, list[tuple[str, bool | None]]]] = {
    "prior-from-a-buffer-of-own-counts": (
        _counted(_OWN, sent=True),
        [("state/buffer-broadcast-overwrites", True)],
    ),
    "prior-from-a-buffer-that-is-made-anew-and-not-sent": (
        _counted(_ANEW, sent=False),
        [("state/buffer-not-synced", True)],
    ),
    # The model's own forward counts and subtracts.
    "prior-that-a-forward-counts": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 5)
        self.register_buffer("seen", torch.ones(5))
    def forward(self, x, y):
        self.seen.mul_(0.8).add_(torch.bincount(y, minlength=5))
        return self.body(x) - (self.seen / self.seen.sum()).log()
model = Net()
batch = torch.arange(32.0).view(8, 4) / 9, torch.tensor([0, 0, 0, 1, 2, 2, 3, 4])
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x, y), y).backward()
    optimizer.step()
""",
        [("state/buffer-broadcast-overwrites", True)],
    ),
    # It is written and only looked at: the loss divides by the shard's count.
    "count-in-a-buffer-beside-a-mean-over-what-is-left": (
        _counted(_OWN, sent=True)
        .replace("prior = (net.seen / net.seen.sum()).log()", "keep = y > 0")
        .replace(
            "cross_entropy(model(x) - prior, y)",
            "cross_entropy(model(x)[keep], y[keep])",
        ),
        [("loss/local-normalizer", True), ("state/buffer-broadcast-overwrites", True)],
    ),
    # The step that sees all samples counts twice what the ranks exchange: no cause.
    "weights-of-the-shard-beside-counts-of-all": (
        _counted(_OF_ALL, sent=True).replace(
            "cross_entropy(model(x) - prior, y)",
            "cross_entropy(model(x) - prior, y, torch.arange(1.0, 6))",
        ),
        [("loss/local-normalizer", True)],
    ),
}
SOUND = {
    "prior-from-a-buffer-of-all-counts": _counted(_OF_ALL, sent=True),
    "prior-from-a-buffer-of-all-counts-that-is-not-sent": _counted(_OF_ALL, sent=False),
}
