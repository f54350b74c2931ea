"""Bugs that begin in a later step: up to there all ranks are what one process is."""

from __future__ import annotations

from tests.diagnose.bugs.step import STEP

_COUNTING = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        self.epoch = 0
    def forward(self, x):
        return self.net(x)
model = Net()
"""

BUGS: dict[str, tuple[str, list[tuple[str, bool | None]]]] = {
    # Deferred re-weighting: a mean of class weights divides by those of the shard.
    "class-weights-from-the-second-step-on": (
        _COUNTING
        + STEP
        + """
    own = getattr(model, "module", model)
    weight = torch.tensor([1.0, 3.0, 9.0]) ** min(own.epoch, 1)
    nn.functional.cross_entropy(model(x), y, weight.to(x)).backward()
    optimizer.step()
    own.epoch += 1
""",
        [("loss/local-normalizer", True)],
    ),
    "contrast-of-samples-from-the-third-step-on": (
        _COUNTING
        + STEP
        + """
    own = getattr(model, "module", model)
    output = model(x)
    value = nn.functional.cross_entropy(output, y)
    if own.epoch > 1:
        value = value + 0.1 * (output @ output.T).logsumexp(1).mean()
    value.backward()
    optimizer.step()
    own.epoch += 1
""",
        [("loss/batch-coupled", True)],
    ),
    # The gradients parted a step before the weights did by the other cause.
    "unfrozen-in-the-second-step-and-a-rate-by-the-own-loss": (
        _COUNTING
        + """
model.net[0].requires_grad_(False)
"""
        + STEP
        + """
    own = getattr(model, "module", model)
    if own.epoch == 1:
        own.net[0].requires_grad_(True)
    value = nn.functional.cross_entropy(model(x), y)
    value.backward()
    optimizer.step()
    if own.epoch == 1:
        optimizer.param_groups[0]["lr"] = 0.1 * value.item()
    own.epoch += 1
""",
        [("ddp/unfrozen-after-wrap", True), ("sync/control-desync", True)],
    ),
    # Adapters that are trained in turn: DDP knows those that it was built with.
    "unfrozen-in-turn-where-unused-ones-are-looked-for": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.both = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])
        self.step = 0
        self.both[1].requires_grad_(False)
    def forward(self, x):
        return self.both[0](x) + self.both[1](x)
model = Net()
def wrap(model):
    return DDP(model, find_unused_parameters=True)
"""
        + STEP
        + """
    own = getattr(model, "module", model)
    for i, part in enumerate(own.both):
        part.requires_grad_(i == own.step % 2)
    own.step += 1
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
        [("ddp/unfrozen-after-wrap", True)],
    ),
    "standardised-by-a-module-that-waits": (
        """
class Standard(nn.Module):
    calls = 0
    def forward(self, x):
        self.calls += 1
        return (x - x.mean(0)) / (x.std(0) + 1) if self.calls > 1 else x
model = nn.Sequential(nn.Linear(4, 6), Standard(), nn.Linear(6, 3))
""",
        [("forward/batch-coupled", True)],
    ),
    "negatives-from-a-memory-of-its-own-samples": (
        """
class Memory(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.bank = nn.Linear(4, 5), [torch.eye(5)[:2]]
    def forward(self, x):
        query, key = self.net(x), self.net(x.flip(1))
        negatives = torch.cat([each.to(key) for each in self.bank])
        self.bank.append(key.detach())
        return torch.cat([(query * key).sum(1)[:, None], query @ negatives.T], 1)
model = Memory()
def loss(output, target):
    return nn.functional.cross_entropy(output, torch.zeros_like(target))
""",
        [("forward/batch-coupled", True)],
    ),
}
