"""Bugs that other causes' fixes mend as well: name -> (source, findings)."""

from __future__ import annotations

from tests.diagnose.bugs.step import STEP

BUGS: dict[str, tuple[str, list[tuple[str, bool | None]]]] = {
    # What others' returns add up to grows with them, as no divisor's quotient does.
    "returns-less-their-mean": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.spread = nn.Linear(4, 2), nn.Parameter(torch.zeros(2))
    def forward(self, x):
        return self.mean(x), self.spread.exp().expand(len(x), 2)
model = Net()
x = torch.randn(8, 4)
batch = x, {"action": torch.randn(8, 2), "returns": x.sum(1) + torch.arange(8) / 6}
def loss(output, target):
    chance = torch.distributions.Normal(*output).log_prob(target["action"]).sum(-1)
    return -(chance * (target["returns"] - target["returns"].mean())).mean()
""",
        [("loss/batch-coupled", True)],
    ),
    # Weights of samples, which are real numbers too, divide.
    "mean-weighted-by-real-targets": (
        """
model = nn.Linear(4, 1)
batch = torch.randn(8, 4), (torch.randn(8), torch.arange(8.0) + 0.5)
def loss(output, target):
    y, weight = target
    return (weight * (output[:, 0] - y).square()).sum() / weight.sum()
""",
        [("loss/local-normalizer", True)],
    ),
    # Every parameter but the scale gets 1/2: W times what they get would do as well.
    "gathered-copies-beside-the-own-rows": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(4, 5), nn.Linear(4, 5)
        self.scale = nn.Parameter(torch.tensor(1.0))
    def forward(self, x):
        rows = (f(x) for f in (self.one, self.other))
        one, other = (nn.functional.normalize(r, dim=-1) for r in rows)
        return one, other, self.scale.exp()
model = Net()
def gathered(z):
    if world() == 1:
        return z
    parts = [torch.zeros_like(z) for _ in range(world())]
    dist.all_gather(parts, z.detach().contiguous())
    parts[rank()] = z
    return torch.cat(parts)
def loss(output, target):
    scores = output[2] * gathered(output[0]) @ gathered(output[1]).T
    return nn.functional.cross_entropy(scores, torch.arange(len(scores)))
""",
        [("collective/no-autograd", True)],
    ),
    # Samples that the budget leaves out are others on ranks: all of them on each rank
    # would be one process's again.
    "budget-of-tokens-ends-the-micro-batches": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.head = nn.Embedding(12, 6), nn.Linear(6, 3)
    def forward(self, x, lengths):
        mask = (torch.arange(9) < lengths[:, None])[..., None]
        return self.head((self.tokens(x).tanh() * mask).sum(1) / lengths[:, None])
model = Net()
lengths = torch.tensor([2, 1, 2, 3, 1, 2, 2, 1, 8, 9, 7, 9, 8, 9, 9, 8])
batch = (torch.randint(0, 12, (16, 9)), lengths), torch.randint(0, 3, (16,))
def within(x, lengths, y):
    used = 0
    for some in zip(*(t.split(2) for t in (x, lengths, y))):
        used += int(some[1].sum())
        if used > 30:
            break
        yield some
"""
        + STEP.replace("x, y = batch", "(x, lengths), y = batch")
        + """
    for ids, length, labels in within(x, lengths, y):
        output = model(ids, length)
        (nn.functional.cross_entropy(output, labels, reduction="sum") / 16).backward()
    optimizer.step()
""",
        [("data/uneven-batches", False), ("unknown", None)],
    ),
    # Numbers are drawn in the first step alone, alike on all ranks.
    "adapter-that-the-first-step-draws": (
        """
class Adapter(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base, g = base, torch.Generator().manual_seed(4)
        start = torch.randn(2, 4, generator=g).to(base.weight)
        self.down = nn.Parameter(start)
        self.up = nn.Parameter(torch.zeros(6, 2).to(base.weight))
    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
    def forward(self, x):
        return self.head(self.body(x).tanh())
model = Net()
"""
        + STEP
        + """
    inner = getattr(model, "module", model)
    if not isinstance(inner.body, Adapter):
        inner.body = Adapter(inner.body)
        added = [inner.body.down, inner.body.up]
        optimizer.add_param_group({"params": added})
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
        [("ddp/param-replaced-after-wrap", True)],
    ),
    # Constants in place of what rank 0 draws would be no momentum: nothing to differ.
    "momentum-that-rank-0-alone-takes-up": (
        """
model = nn.Linear(4, 3)
def optimizer(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)
def loaded(p, g):
    return {"momentum_buffer": 0.05 * torch.randn(p.shape, generator=g).to(p)}
"""
        + STEP
        + """
    if not optimizer.state and rank() == 0:
        g, state = torch.Generator().manual_seed(17), optimizer.state_dict()
        held = optimizer.param_groups[0]["params"]
        state["state"] = {i: loaded(p, g) for i, p in enumerate(held)}
        optimizer.load_state_dict(state)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
        [("sync/control-desync", True)],
    ),
    # A rank whose samples are all left out begins with an update: no closure's.
    "micro-batches-without-an-object-left-out": (
        """
model = nn.Linear(4, 3)
def batch(step):
    g = torch.Generator().manual_seed(step)
    objects = torch.rand(16, generator=g) > 0.4
    first = 8 - 8 * (step % 2)
    objects[first : first + 8] = False
    return (torch.randn(16, 4, generator=g), objects), torch.arange(16) % 3
"""
        + STEP.replace("x, y = batch", "(x, objects), y = batch")
        + """
    for some, has, labels in zip(x.split(4), objects.split(4), y.split(4)):
        if has.any():
            each = nn.functional.cross_entropy(model(some), labels, reduction="none")
            (each[has].sum() / len(x)).backward()
    optimizer.step()
""",
        [("graph/skipped-backward", True)],
    ),
    # Each of two networks waits for the other's gradients, in one DDP object.
    "networks-in-one-wrapper-frozen-in-turn": (
        """
class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator, self.critic = nn.Linear(4, 4), nn.Linear(8, 1)
    def forward(self, x, real=None):
        fake = self.generator(x)
        told = fake if real is None else fake.detach()
        judged = self.critic(torch.cat([x, told], 1))
        return judged if real is None else judged - self.critic(torch.cat([x, real], 1))
model = Pair()
wrap = DDP
def train_step(model, optimizer, batch):
    x, inner = batch[0], getattr(model, "module", model)
    for of_critic in (True, False):
        inner.critic.requires_grad_(of_critic)
        inner.generator.requires_grad_(not of_critic)
        optimizer.zero_grad()
        judged = model(x, x.flip(1)) if of_critic else -model(x)
        nn.functional.softplus(judged).mean().backward()
        optimizer.step()
""",
        [("ddp/frozen-after-wrap", True)],
    ),
    # In the first step rows are shortened by a rounding of the norm alone, 1e-7 of it.
    "rows-shortened-in-forward-after-the-first-update": (
        """
class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.EmbeddingBag(30, 6, mode="mean", max_norm=1.0)
        self.head = nn.Linear(6, 3)
        rows = self.table.weight.data
        rows /= rows.norm(dim=1, keepdim=True)
    def forward(self, ids):
        return self.head(self.table(ids))
model = Bag()
first, second = torch.randint(0, 12, (8, 5)), torch.randint(9, 30, (8, 5))
batch = torch.cat([first, second]), torch.arange(16) % 3
def optimizer(params):
    return torch.optim.SGD(params, lr=2.0)
""",
        [("state/forward-writes-parameter", True)],
    ),
}
