"""Noise that cannot follow the sample: nothing else may be made of it."""

from __future__ import annotations

from tests.diagnose.bugs.step import STEP

NET = "model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))"

BUGS = {
    # The k-th draw of one number stands for another sample on every rank.
    "draws-in-a-loop-over-samples": (
        NET
        + STEP
        + """
    rows = [row.flip(0) if torch.rand(1).item() < 0.5 else row for row in x]
    loss(model(torch.stack(rows)), y).backward()
    optimizer.step()
""",
        [("rng/stochastic-layer", True)],
    ),
    "depth-drawn-in-a-loop-over-samples": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)
    def forward(self, x):
        a = 0 * self.a(x).sum()
        rows = [r + self.a(r) if torch.rand(1) > 0.3 else r for r in x]
        return self.b(torch.stack(rows)) + a
model = Net()
""",
        [("rng/stochastic-layer", True)],
    ),
    # What is drawn for one sample follows from what the others' rates took.
    "counts-drawn-by-rates": (
        NET
        + STEP
        + """
    loss(model(torch.poisson(3 * x.abs())), y).backward()
    optimizer.step()
""",
        [("rng/stochastic-layer", True)],
    ),
}
