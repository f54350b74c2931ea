"""Broken targets that look like another cause than theirs: name -> (source, findings).

`HEAD` comes before each source. A finding is (slug, verified).
"""

from __future__ import annotations

_STEP = """
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
"""

_ACTOR = """
import contextlib
class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = nn.Linear(4, 3), nn.Linear(4, 1)
model = Agent()
def wrap(model):
    model.actor, model.critic = DDP(model.actor), DDP(model.critic)
    return model
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
    # The first step uses it, and its output reaches the loss there.
    "layer-left-out-in-the-second-step": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.calls = nn.Linear(4, 4), nn.Linear(4, 3), 0
        self.skip = nn.Linear(4, 4)
    def forward(self, x):
        self.calls += 1
        x = self.a(x)
        return self.b(x if self.calls == 2 else x + self.skip(x).tanh())
def model():
    torch.manual_seed(0)
    return Net()
batch = torch.randn(8, 4), torch.arange(8) % 3
wrap = DDP
""",
        [("graph/unused-parameter", True)],
    ),
    # Not even a forward: others wait in DDP's own, which exchanges the order of
    # gradients in the second step.
    "skipped-step-after-a-collective": (
        """
model = nn.Linear(4, 3)
def batch(step):
    keep = torch.ones(8)
    keep[4:] = float(step == 0)
    return torch.randn(8, 4), (torch.arange(8) % 3, keep)
def train_step(model, optimizer, batch):
    x, (y, keep) = batch
    count = keep.sum()
    if dist.is_initialized():
        dist.all_reduce(count)
    optimizer.zero_grad()
    if not keep.any():
        return
    values = nn.functional.cross_entropy(model(x), y, reduction="none")
    ((values * keep).sum() * world() / count).backward()
    optimizer.step()
""",
        [("graph/skipped-backward", True)],
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
    # Noise of the optimizer is no noise of the model: ranks must draw alike.
    "noise-of-the-optimizer": (
        """
class SGLD(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        for p in self.param_groups[0]["params"]:
            p.add_(torch.randn_like(p), alpha=0.01)
model = nn.Linear(4, 3)
optimizer = lambda params: SGLD(params, lr=0.1)
""",
        [("sync/control-desync", True)],
    ),
    "noise-on-reduced-gradients": (
        """
model = nn.Linear(4, 3)
"""
        + _STEP
        + """
    loss(model(x), y).backward()
    for p in model.parameters():
        p.grad += 0.1 * torch.randn_like(p)
    optimizer.step()
""",
        [("sync/control-desync", True)],
    ),
    # Nothing that the idle object holds is trained here.
    "idle-wrapper-beside-a-late-no-sync": (
        _ACTOR
        + _STEP
        + """
    for i, (a, b) in enumerate(zip(x.chunk(2), y.chunk(2))):
        quiet = i == 1 and hasattr(model.actor, "no_sync")
        with model.actor.no_sync() if quiet else contextlib.nullcontext():
            (loss(model.actor(a), b) / 2).backward()
    optimizer.step()
""",
        [("sync/no-sync-off-by-one", True)],
    ),
    # Its gradients are averaged by hand, and right from the start.
    "averaged-beside-two-backwards": (
        _ACTOR
        + _STEP
        + """
    a, b = model.actor(x), model.actor(-x)
    scale = (0 * model.critic.weight).sum().exp() * model.critic.bias.exp().sum()
    loss(a * scale, y).backward()
    loss(b, y).backward()
    if world() > 1:
        for p in model.critic.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world()
    optimizer.step()
def wrap(model):
    model.actor = DDP(model.actor)
    return model
""",
        [("ddp/multi-backward", True)],
    ),
    # The class hides its tensors from DDP; averaging needs no_sync all the same.
    "late-no-sync-behind-an-opaque-output": (
        """
import contextlib
class Out:
    def __init__(self, logits):
        self.logits = logits
class Net(nn.Linear):
    def forward(self, x):
        return Out(super().forward(x))
model = Net(4, 3)
"""
        + _STEP
        + """
    for i, (a, b) in enumerate(zip(x.chunk(2), y.chunk(2))):
        quiet = i == 1 and hasattr(model, "no_sync")
        with model.no_sync() if quiet else contextlib.nullcontext():
            (loss(model(a).logits, b) / 2).backward()
    optimizer.step()
""",
        [("sync/no-sync-off-by-one", True)],
    ),
    # The collective is for a log: what it returns goes nowhere.
    "coupled-loss-beside-a-logged-collective": (
        """
model = nn.Linear(4, 3)
def loss(output, target):
    std = (output.var(0) + 1e-4).sqrt()
    if dist.is_initialized():
        dist.all_reduce(std.detach().clone())
    return (1 - std).relu().mean() + output.square().mean()
""",
        [("loss/batch-coupled", True)],
    ),
    # As GANs do: frozen while the other network trains, and freed for its own.
    "frozen-in-turn-beside-an-unused-parameter": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.spare = nn.Linear(4, 4), nn.Linear(4, 4)
    def forward(self, z):
        return self.net(z)
model = nn.ModuleDict({"g": Net(), "d": nn.Linear(4, 1)})
def wrap(model):
    model.g, model.d = DDP(model.g), DDP(model.d)
    return model
def train_step(model, optimizer, batch):
    z, _ = batch
    fake = model["g"](z)
    model["d"].requires_grad_(True)
    optimizer.zero_grad()
    model["d"](torch.cat([z, -fake.detach()])).square().mean().backward()
    model["d"].requires_grad_(False)
    (1 - model["d"](fake)).square().mean().backward()
    optimizer.step()
""".replace("model.g, model.d =", 'model["g"], model["d"] =').replace(
            "DDP(model.g), DDP(model.d)", 'DDP(model["g"]), DDP(model["d"])'
        ),
        [("graph/unused-parameter", True)],
    ),
    # The slopes are for a log; what is not reduced comes from the second backward.
    "logged-slopes-beside-two-backwards": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 3)
    def forward(self, x):
        h = self.body(x).tanh()
        return self.a(h), self.b(h)
model = Net()
wrap = lambda model: DDP(model, find_unused_parameters=True)
"""
        + _STEP
        + """
    a, b = model(x)
    first, second = loss(a, y), b.square().mean()
    shared = getattr(model, "module", model).body.weight
    torch.autograd.grad(first, shared, retain_graph=True)
    first.backward(retain_graph=True)
    second.backward()
    optimizer.step()
""",
        [("ddp/multi-backward", True)],
    ),
    # One rank's rows alone are beyond the norm: the other rank's call writes nothing.
    "rows-bounded-on-one-rank": (
        """
model = nn.Embedding(8, 3, max_norm=1.0)
with torch.no_grad():
    model.weight.copy_(torch.arange(24).reshape(8, 3) % 5 / 50)
    model.weight[5] *= 100
batch = torch.arange(8), torch.arange(8) % 3
""",
        [("state/forward-writes-parameter", True)],
    ),
    # Every second row is the same: strided shards have the batch's own statistics.
    "norm-over-repeated-rows": (
        """
model = nn.Sequential(
    nn.Linear(4, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 3)
)
batch = torch.randn(4, 4).repeat_interleave(2, 0), torch.arange(8) % 3
""",
        [("norm/local-batch-stats", True)],
    ),
    # The counts of the first batch agree.
    "counts-that-differ-in-the-second-batch": (
        """
model = nn.Linear(4, 3)
def batch(step):
    y = torch.arange(8) % 3
    if step:
        y[:3] = -100
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(step)), y
""",
        [("loss/local-normalizer", True)],
    ),
    # Pairs beyond the largest distance of the others count: no count divides them.
    "samples-chosen-among-others": (
        """
model = nn.Linear(4, 1)
def loss(output, target):
    size = output.square().squeeze(1)
    return size[size > size.detach().mean()].sum() / 8
""",
        [("loss/batch-coupled", True)],
    ),
    # The factor is seen where no group is: the run that mends the other one hides it.
    "factor-of-ranks-on-a-coupled-loss": (
        """
model = nn.Linear(4, 5)
def loss(output, target):
    scores = output @ output.detach().T
    return world() * nn.functional.cross_entropy(scores, torch.arange(len(output)))
""",
        [("loss/batch-coupled", True), ("loss/double-world-scale", None)],
    ),
    # A norm that is summed over ranks, behind a loss that gathers as it should.
    "clipped-by-hand-behind-a-gathered-loss": (
        """
model = nn.Linear(4, 5)
"""
        + _STEP
        + """
    output = model(x)
    keys, start = output, 0
    if world() > 1:
        keys, start = torch.cat(dnn.all_gather(output)), rank() * len(output)
    own = torch.arange(len(output)) + start
    nn.functional.cross_entropy(output @ keys.T, own).backward()
    square = sum(p.grad.square().sum() for p in model.parameters())
    if world() > 1:
        dist.all_reduce(square)
    for p in model.parameters():
        p.grad *= 0.1 / square.sqrt()
    optimizer.step()
""",
        [("sync/clip-norm-overreduced", True)],
    ),
    # The forward pads to its longest; what packs rows has orders of its own.
    "padding-of-the-shard-behind-packed-rows": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 3)
    def forward(self, x, length):
        pack = nn.utils.rnn.pack_padded_sequence
        packed = self.rnn(pack(x, length, batch_first=True, enforce_sorted=False))[0]
        hidden = nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)[0]
        return self.out(hidden).mean(1)
model = Net()
length = torch.tensor([2, 4, 1, 3, 5, 5, 2, 6])
batch = (torch.randn(8, 6, 3), length), torch.arange(8) % 3
""",
        [("forward/batch-coupled", True)],
    ),
    # The optimizer holds none of the model's parameters; those inside do, in turn.
    "sum-behind-an-optimizer-of-optimizers": (
        """
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
class Multi(torch.optim.Optimizer):
    def __init__(self, parts):
        super().__init__([{"params": []}], {})
        self.parts = parts
    def zero_grad(self, set_to_none=True):
        for part in self.parts:
            part.zero_grad()
    def step(self, closure=None):
        for part in self.parts:
            part.step()
def optimizer(params):
    params = list(params)
    return Multi([torch.optim.Rprop(params[:2]), torch.optim.Rprop(params[2:])])
"""
        + _STEP
        + """
    nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        [("loss/sum-reduction", True)],
    ),
    # A rank whose shard has no positives sets no gradient: all average all the same.
    "slopes-on-one-rank-only": (
        """
model = nn.Linear(4, 1)
batch = torch.randn(8, 4), torch.arange(8)
"""
        + _STEP
        + """
    chosen = model(x)[y < 3]
    if len(chosen):
        params = list(model.parameters())
        value = chosen.square().sum() / len(x)
        for p, grad in zip(params, torch.autograd.grad(value, params)):
            p.grad = grad.clone()
    optimizer.step()
""",
        [("ddp/autograd-grad", True)],
    ),
    # Two objects, and two backwards of one of them.
    "two-backwards-of-one-of-two-networks": (
        _ACTOR
        + _STEP
        + """
    value = model.critic(x)
    value.square().mean().backward(retain_graph=True)
    (value**4).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    loss(model.actor(x), y).backward()
    optimizer.step()
""",
        [("ddp/multi-backward", True)],
    ),
    # Frozen for good from the second step on, and not in turn.
    "frozen-for-good-in-the-second-step": (
        """
steps = []
def model():
    steps.clear()
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
wrap = lambda model: DDP(model)
"""
        + _STEP
        + """
    if len(steps) == 1:
        next(model.parameters()).requires_grad_(False)
    steps.append(None)
    loss(model(x), y).backward()
    optimizer.step()
""",
        [("ddp/frozen-after-wrap", True)],
    ),
    # A hook that sums makes up for a sum; what every rank has in full it counts twice.
    "penalty-beside-a-sum-that-a-hook-sums": (
        """
class Net(nn.Linear):
    def forward(self, x):
        return super().forward(x), self.weight.square().sum()
model = Net(4, 3)
def loss(output, target):
    logits, penalty = output
    return nn.functional.cross_entropy(logits, target, reduction="sum") + penalty
def sum_hook(_, bucket):
    done = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return done.then(lambda future: future.value()[0])
def wrap(model):
    wrapped = DDP(model)
    wrapped.register_comm_hook(None, sum_hook)
    return wrapped
""",
        [("loss/regularizer-scale", True)],
    ),
    # Edges and their absence, each a mean of its own, and indices made of the shard.
    "two-means-of-edges-within-the-model": (
        """
class Edges(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 3)
    def forward(self, x, kinds):
        index = torch.arange(len(x)) ^ 1
        z = self.embed(x)[index]
        near, far = z[kinds == 0], z[kinds != 0]
        return near.square().mean() - far.sigmoid().log().mean()
model = Edges()
batch = (torch.randn(8, 4), torch.tensor([0, 0, 0, 1, 1, 1, 1, 0])), torch.zeros(8)
loss = lambda output, _: output
""",
        [("loss/local-normalizer", True)],
    ),
    # No module returns what the loss is made of; a count divides it, or outputs do.
    "masked-mean-within-a-model-without-modules": (
        """
class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 5))
    def forward(self, x, mask):
        return ((x @ self.weight).square().sum(1) * mask).sum() / mask.sum()
model = Masked()
batch = (torch.randn(8, 4), torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0])), torch.zeros(8)
loss = lambda output, _: output
""",
        [("loss/local-normalizer", True)],
    ),
    "ratio-within-a-model-without-modules": (
        """
class Overlap(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 5))
    def forward(self, x, y):
        p = (x @ self.weight).sigmoid()
        return 1 - (p * y).sum() / (p + y - p * y).sum()
model = Overlap()
batch = (torch.randn(8, 4), (torch.randn(8, 5) > 0).double()), torch.zeros(8)
loss = lambda output, _: output
""",
        [("loss/batch-coupled", True)],
    ),
}
