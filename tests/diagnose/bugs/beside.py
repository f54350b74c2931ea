"""Bugs beside what else a training step does: name -> (source, findings)."""

from __future__ import annotations

from tests.diagnose.bugs.step import STEP

_DEALT = """
model = nn.Linear(4, 1)
length = torch.tensor([8, 1, 2, 1, 3, 1, 1, 1])
batch = torch.randn(8, 4), torch.randn(8), length
def gathered(t):
    if world() == 1:
        return t
    parts = [torch.empty_like(t) for _ in range(world())]
    dist.all_gather(parts, t)
    return torch.cat(parts)
def train_step(model, optimizer, batch):
    x, y, length = map(gathered, batch)
    hands = [[] for _ in range(world())]
    for i in length.argsort(descending=True, stable=True).tolist():
        min(hands, key=lambda hand: int(length[hand].sum())).append(i)
    mine = hands[rank()]
    share = world() * len(mine) / len(x)
    optimizer.zero_grad()
    loss = (model(x[mine])[:, 0] - y[mine]).square().mean()
"""
_RETURNS_A_MASK = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.one = nn.Linear(4, 6), nn.Linear(6, 1)
        self.each = nn.Linear(6, 5)
    def forward(self, x, length):
        h = self.body(x).tanh()
        mask = (torch.arange(5) < length[:, None]).to(x.dtype)
        return self.one(h)[:, 0], self.each(h), mask
model = Net()
length = torch.tensor([1, 2, 1, 3, 5, 4, 5, 3])
batch = torch.randn(8, 4), length, torch.randn(8), torch.randn(8, 5)
def train_step(model, optimizer, batch):
    x, length, y, goal = batch
    optimizer.zero_grad()
    one, each, mask = model(x, length)
    term = ((each - goal).square() * mask).sum() / mask.sum()
    sound = (one - y).abs().mean() + 0.1 * (each * mask).sum(1).square().mean()
    (sound + 0.5 * term).backward()
"""
_SUMS_THE_NORM = """
    with torch.no_grad():
        norm = sum(p.grad.square().sum() for p in model.parameters())
        if world() > 1:
            dist.all_reduce(norm)
        for p in model.parameters():
            p.grad *= (0.1 / norm.sqrt()).clamp(max=1)
    optimizer.step()
"""
_TWO_VIEWS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5))
    def forward(self, a, b):
        return nn.functional.normalize(self.body(torch.cat([a, b])), dim=1)
"""
_CONTRASTED = """
x = torch.randn(8, 4) * torch.linspace(0.5, 2, 8)[:, None]
batch = x + 0.3 * torch.randn(8, 4), x + 0.3 * torch.randn(8, 4)
def contrast(z):
    n = len(z) // 2
    scores = (2 * z @ z.T).masked_fill(torch.eye(2 * n, dtype=torch.bool), -1e9)
    return nn.functional.cross_entropy(scores, torch.arange(2 * n).roll(n))
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    z = model(*batch)
    contrast(torch.cat(dnn.all_gather(z)) if world() > 1 else z).backward()
    optimizer.step()
"""
_ADDS = """
import contextlib
def add(state, bucket):
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda done: done.value()[0])
def wrap(model):
    ddp = DDP(model)
    ddp.register_comm_hook(None, add)
    return ddp
def not_yet(model, last):
    return model.no_sync() if world() > 1 and not last else contextlib.nullcontext()
model = nn.Linear(4, 3)
"""

BUGS: dict[str, tuple[str, list[tuple[str, bool | None]]]] = {
    # On the loss of all samples, which every rank has whole, the penalty is whole, too.
    "risk-sets-beside-a-penalty": (
        f"""
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
batch = torch.randn(8, 4), torch.arange(8.0).roll(3) % 5
def likelihood(risk, time):
    risk = risk[time.argsort(descending=True, stable=True)]
    return (torch.logcumsumexp(risk, 0) - risk).mean()
{STEP}
    penalty = sum(p.square().sum() for p in model.parameters() if p.dim() > 1)
    (likelihood(model(x)[:, 0], y) + 0.01 * penalty).backward()
    optimizer.step()
""",
        [("loss/batch-coupled", True)],
    ),
    # A step that gathers by itself gathers what it is given of all samples again.
    "two-views-gathered-rank-by-rank-in-a-step": (
        f"""{_TWO_VIEWS}model = Net()
{_CONTRASTED}""",
        [("collective/layout", True)],
    ),
    # Each hides what the other is: gradients are off by both.
    "views-gathered-rank-by-rank-and-clipped-before": (
        f"""{_TWO_VIEWS}class Clipped(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()
        for p in self.net.parameters():
            p.register_hook(lambda g: g * (0.02 / g.norm()).clamp(max=1))
    def forward(self, a, b):
        return self.net(a, b)
def model():
    torch.manual_seed(0)
    return Clipped()
{_CONTRASTED}""",
        [("collective/layout", True), ("sync/clip-before-reduce", True)],
    ),
    # Other samples' masks, which the model returns, decide what divides one of terms.
    "term-divided-by-a-mask-that-the-model-returns": (
        f"""{_RETURNS_A_MASK}
    optimizer.step()
""",
        [("loss/local-normalizer", True)],
    ),
    "term-divided-by-a-mask-and-a-norm-summed-over-ranks": (
        f"{_RETURNS_A_MASK}{_SUMS_THE_NORM}",
        [("loss/local-normalizer", True), ("sync/clip-norm-overreduced", True)],
    ),
    # Long samples to one rank, many short ones to the other.
    "samples-dealt-out-by-length": (
        f"""{_DEALT}
    loss.backward()
    optimizer.step()
""",
        [("loss/uneven-shard", True)],
    ),
    # The loss allows for the sum, and not for what was added up before.
    "hook-that-adds-up-what-it-has-added-up": (
        f"""{_ADDS}{STEP}
    for a, b in zip(x.chunk(2), y.chunk(2)):
        (nn.functional.cross_entropy(model(a), b) / (2 * world())).backward()
    optimizer.step()
""",
        [("sync/comm-hook-semantics", True)],
    ),
    # One of two networks is clipped; the other's gradients are wrong by its weights.
    "norm-of-the-critic-that-is-summed-over-ranks": (
        """
class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        self.critic = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))
    def forward(self, x, real):
        made = self.maker(x) if real is None else real
        return self.critic(made)
model = Pair()
batch = torch.randn(8, 4), torch.randn(8, 3)
def wrap(model):
    return DDP(model, find_unused_parameters=True)
def train_step(model, optimizer, batch):
    x, real = batch
    net = getattr(model, "module", model)
    optimizer.zero_grad()
    (model(x, real) - 1).square().mean().backward()
    with torch.no_grad():
        norm = sum(p.grad.square().sum() for p in net.critic.parameters())
        if world() > 1:
            dist.all_reduce(norm)
        for p in net.critic.parameters():
            p.grad *= (0.1 / norm.sqrt()).clamp(max=1)
    optimizer.step()
    optimizer.zero_grad()
    net.critic.requires_grad_(False)
    (model(x, None) - 1).square().mean().backward()
    net.critic.requires_grad_(True)
    optimizer.step()
""",
        [("sync/clip-norm-overreduced", True)],
    ),
}
SOUND: dict[str, str] = {
    "samples-dealt-out-by-length-and-weighed": f"""{_DEALT}
    (share * loss).backward()
    optimizer.step()
""",
    "hook-that-adds-up-once": f"""{_ADDS}{STEP}
    for i, (a, b) in enumerate(zip(x.chunk(2), y.chunk(2))):
        with not_yet(model, last=i == 1):
            (nn.functional.cross_entropy(model(a), b) / (2 * world())).backward()
    optimizer.step()
""",
}
