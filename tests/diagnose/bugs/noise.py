"""Noise that cannot follow the sample: nothing else may be made of it."""

from __future__ import annotations

from tests.diagnose.bugs.step import STEP

NET = "model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))"

# Numbers of a generator of numpy's: torch sees none of the draws.
HELD = """
import numpy as np
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)
        self.rng = np.random.RandomState({seed})
    def forward(self, x):
        h = self.a(x)
        return self.b(h + torch.from_numpy(self.rng.randn(*h.shape)).to(h.dtype))
def model():
    torch.manual_seed(0)
    return Net()
"""

# Drawn beside samples that are right: a mask, as a collator makes it.
MASKED = f"""
import numpy as np
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)
    def forward(self, x, mask):
        return self.b(self.a(x * ~mask).tanh())
model = Net()
{STEP}
    mask = torch.from_numpy(np.random.default_rng(SEED).random(x.shape) < 0.3)
    loss(model(x, mask), y).backward()
    optimizer.step()
"""

BUGS = {
    # What comes of them follows from the sample as well: no two ranks have the same.
    "frequencies-left-out-by-numpy-seeded-alike": (
        f"""
import numpy as np
{NET}
{STEP}
    generator = np.random.RandomState(5)
    kept = torch.from_numpy(generator.uniform(size=x.shape) < 0.6)
    x = torch.fft.ifft(torch.fft.fft(x) * kept).real
    loss(model(x), y).backward()
    optimizer.step()
""",
        [("rng/same-stream-all-ranks", True)],
    ),
    "mask-of-numpy-seeded-alike": (
        MASKED.replace("SEED", "5"),
        [("rng/same-stream-all-ranks", True)],
    ),
    "mask-of-numpy-seeded-by-rank": (
        MASKED.replace("SEED", "(5, rank())"),
        [("rng/stochastic-layer", True)],
    ),
    # What stands for the place in the shard is alike on all ranks, and no draw.
    "mask-by-the-place-in-the-shard": (
        MASKED.replace(
            "torch.from_numpy(np.random.default_rng(SEED).random(x.shape) < 0.3)",
            "torch.arange(4) == torch.arange(len(x))[:, None]",
        ),
        [("forward/batch-coupled", True)],
    ),
    # With the rows of all ranks it draws for them as one process does: no coupling.
    "generator-of-numpy-that-the-model-seeds": (
        HELD.format(seed=5),
        [("rng/same-stream-all-ranks", True)],
    ),
    "generator-of-numpy-that-the-model-seeds-by-rank": (
        HELD.format(seed="rank()"),
        [("rng/stochastic-layer", True)],
    ),
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
    # The target seeds its own generator, by the rank.
    "points-drawn-by-seed-and-rank": (
        NET
        + STEP
        + """
    g = torch.Generator().manual_seed(7 + rank())
    mixed = x + torch.rand(len(x), 1, generator=g, dtype=x.dtype)
    loss(model(mixed), y).backward()
    optimizer.step()
""",
        [("rng/stochastic-layer", True)],
    ),
    "candidates-drawn-by-seed-and-rank": (
        NET
        + STEP
        + """
    g = torch.Generator().manual_seed(17 * rank())
    others = torch.randint(0, 3, (2,), generator=g)
    output = model(x)
    (loss(output, y) + output[:, others].square().mean()).backward()
    optimizer.step()
""",
        [("rng/stochastic-layer", True)],
    ),
    # One process draws nothing; what the ranks draw is an order that all must share.
    "order-that-is-not-sent": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
    def forward(self, x):
        hidden = self.body(x)
        if dist.is_initialized():
            order = torch.randperm(len(x) * world())
            every = torch.cat(dnn.all_gather(hidden))[order].tanh()
            mine = every.chunk(world())[rank()]
            every = torch.cat(dnn.all_gather(mine))
            return self.head(every[order.argsort()].chunk(world())[rank()])
        return self.head(hidden.tanh())
model = Net()
""",
        [("rng/stochastic-layer", True)],
    ),
    # With the loss of all samples a rank's model still draws for its own.
    "noise-of-one-generator-beside-a-count-of-the-outputs": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.calls = nn.Linear(4, 3), 0
    def forward(self, x):
        self.calls += 1
        drawn = torch.Generator().manual_seed(self.calls)
        noise = torch.randn(x.shape, generator=drawn, dtype=torch.float64)
        return self.layers(x), self.layers(x + noise.to(x))
def model():
    torch.manual_seed(0)
    return Net()
batch = torch.randn(8, 4) * torch.arange(1.0, 9)[:, None], torch.arange(8) % 3
def loss(output, target):
    weak, strong = output
    sure, label = weak.detach().softmax(1).max(1)
    keep = (sure > 0.5).to(strong)
    each = nn.functional.cross_entropy(strong, label, reduction="none")
    count = keep.sum().clamp(min=1)
    return nn.functional.cross_entropy(weak, target) + (keep * each).sum() / count
""",
        [("rng/same-stream-all-ranks", True), ("loss/local-normalizer", True)],
    ),
}
