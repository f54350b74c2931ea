"""A loss whose gradient an autograd function adds: name -> (source, findings)."""

from __future__ import annotations

_ADDED = """
class Added(torch.autograd.Function):
    scale = 1.0
    @staticmethod
    def forward(ctx, output, term):
        ctx.term = term
        return output.view_as(output)
    @staticmethod
    def backward(ctx, grad):
        return grad, torch.full_like(ctx.term, Added.scale)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.head = nn.Linear(4, 3), nn.Linear(4, 3)
    def forward(self, x):
        shares = self.gate(x).softmax(-1)
        return self.head(x) * Added.apply(shares, self.term(shares))
    def term(self, shares):
        return 0.3 * shares.square().sum(1).mean()
"""
BUGS: dict[str, tuple[str, list[tuple[str, bool | None]]]] = {
    "balance-as-a-share-of-all-samples": (
        _ADDED
        + """
class OfAll(Net):
    def term(self, shares):
        count = torch.tensor(float(len(shares)))
        if dist.is_initialized():
            dist.all_reduce(count)
        return 0.3 * shares.square().sum() / count
model = OfAll()
""",
        [("loss/missing-world-scale", True)],
    ),
    "balance-multiplied-by-the-number-of-ranks": (
        _ADDED
        + """
model = Net()
def wrap(model):
    Added.scale = world()
    return DDP(model)
""",
        [("loss/double-world-scale", True)],
    ),
    "balance-of-counts-and-probabilities": (
        _ADDED
        + """
class Counted(Net):
    def term(self, shares):
        chosen = nn.functional.one_hot(shares.argmax(-1), 3).to(shares.dtype)
        return (chosen.mean(0) * shares.mean(0)).sum()
model = Counted()
""",
        [("loss/router-aux", True)],
    ),
    "penalty-on-the-spread-of-what-a-layer-returns": (
        _ADDED
        + """
class Spread(Net):
    def forward(self, x):
        features = self.gate(x)
        return Added.apply(self.head(x), self.term(features))
    def term(self, features):
        return 0.3 * features.var(0).sum()
model = Spread()
""",
        [("forward/batch-coupled", True)],
    ),
}
SOUND = {"balance-as-a-mean": _ADDED + "\nmodel = Net()\n"}
