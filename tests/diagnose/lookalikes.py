"""Broken targets that look like another cause than theirs: name -> (source, findings).

`HEAD` comes before each source. A finding is (slug, verified).
"""

from __future__ import annotations

_STEP = """
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
"""

LOOKALIKES: dict[str, tuple[str, list[tuple[str, bool | None]]]] = {
    # The rank that goes on meets the collective of its next step.
    "skipped-backward-before-a-collective": (
        """
model = nn.Linear(4, 3)
def loss(output, target):
    count = torch.ones(())
    if dist.is_initialized():
        dist.all_reduce(count)
    return nn.functional.cross_entropy(output, target) * world() / count
"""
        + _STEP
        + """
    value = loss(model(x), y)
    if world() == 1 or rank() != 1:
        value.backward()
        optimizer.step()
""",
        [("graph/skipped-backward", None)],
    ),
    # DDP's own words are those of a parameter used twice in one backward.
    "two-backwards-marked-ready-twice": (
        """
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
"""
        + _STEP
        + """
    output = model(x)
    nn.functional.cross_entropy(output, y).backward(retain_graph=True)
    (0.1 * output.square().mean()).backward()
    optimizer.step()
""",
        [("ddp/multi-backward", True)],
    ),
    # Tensors two objects deep, found by no walk over dicts and dataclasses.
    "distribution-as-output": (
        """
from torch.distributions import Independent, Normal
class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.value = nn.Linear(4, 3), nn.Linear(4, 1)
    def forward(self, x):
        return Independent(Normal(self.mean(x), 1.0), 1)
model = Policy()
def wrap(model):
    return DDP(model, find_unused_parameters=True)
def loss(output, target):
    return -output.log_prob(nn.functional.one_hot(target, 3)).mean()
""",
        [("graph/opaque-output", True)],
    ),
    # The hooks are not there yet when training begins.
    "hooks-registered-in-the-first-step": (
        """
class Net(nn.Linear):
    guarded = False
model = Net(4, 3)
"""
        + _STEP
        + """
    net = getattr(model, "module", model)
    if not net.guarded:
        net.guarded = True
        net.weight.register_hook(lambda g: g.clamp(-0.05, 0.05))
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
        [("sync/clip-before-reduce", True)],
    ),
    # Other rows than in one process, as of a module that mixes samples.
    "generator-of-its-own-in-forward": (
        """
class Noisy(nn.Module):
    def forward(self, x):
        g = torch.Generator().manual_seed(7)
        return x + torch.randn(x.shape, generator=g)
model = nn.Sequential(nn.Linear(4, 6), Noisy(), nn.Linear(6, 3))
""",
        [("rng/same-stream-all-ranks", True)],
    ),
    # Other rows than in one process, and other ones in one process run again.
    "entropy-of-the-operating-system": (
        """
import random
class Noisy(nn.Module):
    def forward(self, x):
        return x * (1 + random.SystemRandom().random())
model = nn.Sequential(nn.Linear(4, 6), Noisy(), nn.Linear(6, 3))
""",
        [("rng/stochastic-layer", None)],
    ),
    # No factor per rank fits, as of counts that differ; two parts do.
    "sum-beside-a-mean": (
        """
model = nn.Linear(4, 3)
def loss(output, target):
    mean = nn.functional.cross_entropy(output, target)
    return mean + 0.01 * output.square().sum()
""",
        [("loss/sum-reduction", True)],
    ),
    # No factor per rank, as of counts that differ.
    "groups-related-by-their-targets-alone": (
        """
model = nn.Linear(4, 1)
batch = torch.randn(8, 4), torch.randn(8)
def loss(output, target):
    groups = target.reshape(4, -1)  # sample i belongs to group i % 2
    advantage = (groups - groups.mean(0)) / (groups.std(0) + 1e-4)
    return -(output[:, 0].tanh() * advantage.flatten()).mean()
""",
        [("data/batch-layout", True)],
    ),
    # The value is right in the mean only: every rank has anchors of its own.
    "constant-gather-of-own-anchors": (
        """
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.arange(8) % 2
@torch.no_grad()
def constant(x):
    parts = [torch.empty_like(x) for _ in range(world())]
    dist.all_gather(parts, x)
    return parts
def loss(output, target):
    z, first = output, 0
    if dist.is_initialized():
        parts = constant(output)
        parts[rank()] = output
        z, first = torch.cat(parts), rank() * len(output)
    labels = torch.arange(len(output)) + first
    return nn.functional.cross_entropy(output @ z.T, labels)
""",
        [("collective/no-autograd", True)],
    ),
    # Weights part by the learning rate with averaged gradients as well.
    "bypassed-and-a-rank-of-its-own-rate": (
        """
model = nn.Linear(4, 3)
batch = torch.randn(8, 4) * torch.linspace(1, 4, 8)[:, None], torch.arange(8) % 3
"""
        + _STEP
        + """
    value = nn.functional.cross_entropy(getattr(model, "module", model)(x), y)
    value.backward()
    optimizer.param_groups[0]["lr"] = 0.1 * min(1.0, value.item())
    optimizer.step()
""",
        [("ddp/forward-bypassed", True), ("sync/control-desync", True)],
    ),
    # Outputs of the first step are right: the branch is multiplied by zero.
    "batch-norm-in-a-zero-initialised-branch": (
        """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        nn.init.zeros_(self.norm.weight)
        self.head = nn.Linear(4, 3)
    def forward(self, x):
        return self.head(x + self.norm(self.first(x)))
model = Block()
""",
        [("norm/local-batch-stats", True)],
    ),
    # Nodes are counted from the shard's first one: the module's input is no other.
    "batch-norm-behind-packed-indices": (
        """
class Mix(nn.Module):
    def forward(self, x, index):
        return x + x[index]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.norm, self.head = Mix(), nn.BatchNorm1d(4), nn.Linear(4, 3)
    def forward(self, x):
        start = torch.arange(len(x))[:, None] * 2
        index = (start + torch.tensor([[1, 0]])).flatten()
        x = self.mix(x.reshape(-1, 4), index)
        return self.head(self.norm(x).reshape(-1, 2, 4).sum(1))
model = Net()
batch = torch.randn(8, 2, 4), torch.arange(8) % 3
""",
        [("norm/local-batch-stats", True)],
    ),
    # The buffer is written outside all modules, by the step itself.
    "buffer-written-by-the-step": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.register_buffer("centre", torch.zeros(3))
    def forward(self, x):
        return self.head(x) - self.centre
model = Net()
"""
        + _STEP
        + """
    output = model(x)
    nn.functional.cross_entropy(output, y).backward()
    optimizer.step()
    centre = getattr(model, "module", model).centre
    centre.lerp_(output.detach().mean(0), 0.5)
""",
        [("state/buffer-broadcast-overwrites", True)],
    ),
}
