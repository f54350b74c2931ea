"""Terms divided by counts that ranks have summed up, beside terms that are right."""

from __future__ import annotations

_MODEL = """
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
batch = torch.randn(8, 4), torch.tensor([0, -100, 2, 1, -100, -100, 2, 0])
def summed(output, target):
    return nn.functional.cross_entropy(output, target, reduction="sum")
def flatness(output):
    return 0.1 * output.logsumexp(-1).square().mean()
"""
_FOUND: list[tuple[str, bool | None]] = [("loss/missing-world-scale", True)]

BUGS: dict[str, tuple[str, list[tuple[str, bool | None]]]] = {
    # Only the first rank has the count of all; another has what gloo left of it.
    "count-reduced-to-the-first-rank": (
        """
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, -1, 1, -1, -1, 0])
def loss(output, target):
    count = (target >= 0).sum()
    if dist.is_initialized():
        dist.reduce(count, dst=0)
    each = nn.functional.cross_entropy(output, target, ignore_index=-1, reduction="sum")
    return world() * each / count
""",
        [("loss/local-normalizer", True)],
    ),
    # 5 over 2 is 2: the same on all ranks, and no power of their number.
    "mean-count-rounded-down": (
        """
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, -1, 1, -1, -1, 0])
def loss(output, target):
    count = (target >= 0).sum()
    if dist.is_initialized():
        dist.all_reduce(count)
        count = count // world()
    each = nn.functional.cross_entropy(output, target, ignore_index=-1, reduction="sum")
    return each / count
""",
        [("loss/local-normalizer", True)],
    ),
    # Five valid targets: the mean of the ranks' counts is no whole number.
    "count-of-all-beside-a-mean": (
        _MODEL
        + """
def loss(output, target):
    n = (target >= 0).sum()
    if dist.is_initialized():
        dist.all_reduce(n)
    return summed(output, target) / n + flatness(output)
""",
        _FOUND,
    ),
    "count-of-all-as-a-number-beside-a-mean": (
        _MODEL
        + """
def loss(output, target):
    n = (target >= 0).sum()
    if dist.is_initialized():
        dist.all_reduce(n, async_op=True).wait()
    return summed(output, target) * (1 / max(n.item(), 1)) + flatness(output)
""",
        _FOUND,
    ),
    "count-of-all-by-a-function-beside-a-mean": (
        _MODEL
        + """
def loss(output, target):
    n = (target >= 0).sum().float()
    if dist.is_initialized():
        n = dnn.all_reduce(n)
    return summed(output, target) / n.clamp(min=1) + flatness(output)
""",
        _FOUND,
    ),
    # No cut is seen through two backwards, and yet all gradients have one factor.
    "own-rows-of-the-gradient-of-all": (
        """
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
batch = torch.randn(8, 4), torch.zeros(8)
def train_step(model, optimizer, batch):
    with torch.no_grad():
        own = everyone = model(batch[0])
    start = rank() * len(own)
    if dist.is_initialized():
        parts = [torch.empty_like(own) for _ in range(world())]
        dist.all_gather(parts, own)
        everyone = torch.cat(parts)
    everyone = everyone.detach().requires_grad_()
    (everyone @ everyone.T).logsumexp(1).mean().backward()
    optimizer.zero_grad()
    (model(batch[0]) * everyone.grad[start : start + len(own)]).sum().backward()
    optimizer.step()
""",
        _FOUND,
    ),
    # Counts of two kinds, one of them divided by in the right way.
    "one-of-two-counts-of-all": (
        _MODEL
        + """
def loss(output, target):
    n = torch.stack([(target >= 0).sum(), (target < 0).sum()]).double()
    if dist.is_initialized():
        dist.all_reduce(n)
    unknown = (output.logsumexp(-1).square() * (target < 0)).sum()
    return summed(output, target) / n[0] + world() * unknown / n[1]
""",
        [("loss/missing-world-scale", True)],
    ),
}

SOUND = {
    "count-of-all-times-the-world-beside-a-mean": _MODEL
    + """
def loss(output, target):
    n = (target >= 0).sum()
    if dist.is_initialized():
        dist.all_reduce(n)
    return summed(output, target) * world() / n + flatness(output)
""",
}
