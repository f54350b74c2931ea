"""Models that return a list with an item per sample: name -> (source, findings)."""

from __future__ import annotations

from tests.diagnose.bugs.step import STEP

_LISTS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
    def forward(self, x):
        return [{"scores": self.net(row)} for row in x]
model = Net()
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, -100, 1, 2, -100, -100])
def stacked(output):
    return torch.stack([found["scores"] for found in output])
"""
_MEANS = """
def loss(output, target):
    each = nn.functional.cross_entropy(stacked(output), target, reduction="none")
    return each.mean()
"""
BUGS: dict[str, tuple[str, list[tuple[str, bool | None]]]] = {
    "masked-mean-of-a-list": (
        _LISTS
        + """
def loss(output, target):
    return nn.functional.cross_entropy(stacked(output), target)
""",
        [("loss/local-normalizer", True)],
    ),
    "overlap-of-a-list": (
        _LISTS
        + """
def loss(output, target):
    p = stacked(output).softmax(-1)[:, 0]
    y = (target == 0).to(p.dtype)
    return 1 - 2 * (p * y).sum() / (p.sum() + y.sum())
""",
        [("loss/batch-coupled", True)],
    ),
    "mean-over-samples-behind-a-list": (
        _LISTS
        + """
class Mixing(Net):
    def forward(self, x):
        rows = self.net(x)
        return [{"scores": row} for row in rows - rows.mean(0)]
model = Mixing()
"""
        + _MEANS,
        [("forward/batch-coupled", True)],
    ),
    # Items of several lengths, in two lists.
    "points-of-lists-of-several-lengths": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.far = nn.Linear(5, 2), nn.Linear(5, 2)
    def forward(self, points, count):
        kept = [p[:n] for p, n in zip(points, count.tolist())]
        return {
            "points": [self.net(p) for p in kept],
            "far": tuple(self.far(p) for p in kept),
        }
model = Net()
counts = torch.tensor([1, 2, 2, 3, 1, 2, 6, 7])
batch = {"points": torch.randn(8, 7, 5), "count": counts}, torch.arange(8) % 3
def loss(output, target):
    gaps = torch.cat(output["points"]) - torch.cat(output["far"])
    return gaps.square().mean()
""",
        [("loss/local-normalizer", True)],
    ),
    # Where all samples are near, the far head is left out.
    "head-left-out-by-all-samples-of-the-shard": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.near, self.far = nn.Linear(4, 3), nn.Linear(4, 3)
    def forward(self, x):
        heads = [self.near] if (x.norm(dim=1) < 1).all() else [self.near, self.far]
        return [head(x) for head in heads]
model = Net()
def wrap(model):
    return DDP(model, find_unused_parameters=True)
batch = torch.randn(8, 4) * torch.tensor([9.0] * 4 + [0.01] * 4)[:, None], batch[1]
def loss(output, target):
    each = [nn.functional.cross_entropy(o, target) for o in output]
    return sum(each) / len(each)
""",
        [("forward/batch-coupled", True)],
    ),
}
SOUND = {
    "mean-of-a-list": _LISTS + _MEANS,
    "mean-of-a-list-in-a-step": _LISTS
    + _MEANS
    + STEP
    + """
    loss(model(x), y).backward()
    optimizer.step()
""",
}
