"""Bugs of what modules keep and mix, of noise, of no known kind, as in __init__."""

from __future__ import annotations

from tests.diagnose.bugs.step import STEP

# A batch norm for every two rows: shards of four hold whole ghosts.
_GHOSTS = """
class Ghosts(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
    def forward(self, x):
        return torch.cat([self.norm(ghost) for ghost in x.split(2)])
model = nn.Sequential(FIRST, nn.Linear(4, 6), Ghosts(6), nn.Tanh(), nn.Linear(6, 3))
"""

BUGS: dict[str, tuple[str, list[tuple[str, bool | None]]]] = {
    # Synchronised with it, ghosts would be wrong: the norm of the shard is alone.
    "norm-of-the-shard-before-ghosts-that-are-whole": (
        _GHOSTS.replace("FIRST", "nn.BatchNorm1d(4)"),
        [("norm/local-batch-stats", True)],
    ),
    # The statistics that all ranks start from are what the norm makes of more rows.
    "norms-that-model-calls-before-it-returns": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        last = nn.SyncBatchNorm if world() > 1 else nn.BatchNorm1d
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh())
        self.head = nn.Sequential(nn.Linear(6, 3), last(3))
        self(torch.arange(8.0).view(2, 4))
    def forward(self, x):
        return self.head(self.body(x))
def model():
    torch.manual_seed(0)
    return Net()
""",
        [("norm/local-batch-stats", True)],
    ),
    # The call that counts reads the count.
    "samples-seen-that-anneal-in-the-same-call": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
    def forward(self, x):
        self.seen += len(x)
        return self.head(x) * (self.seen / 40)
model = Net()
""",
        [("state/buffer-broadcast-overwrites", True)],
    ),
    # The embedding is written by the model, not by its own call.
    "rows-of-the-shard-that-the-model-normalises": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.items, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)
    def forward(self, item):
        with torch.no_grad():
            rows = self.items.weight[item.unique()]
            self.items.weight[item.unique()] = nn.functional.normalize(rows)
        return self.head(self.items(item))
model = Net()
batch = torch.arange(8), torch.arange(8) % 3
""",
        [("state/forward-writes-parameter", True)],
    ),
    # The inner one is called with the rows of all ranks already.
    "router-that-ranks-tokens-within-a-layer-that-does": (
        """
class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(4, 2)
    def forward(self, x):
        scores = self.score(x).softmax(1)
        order = scores.max(1).values.argsort(descending=True).argsort()
        return scores * (order < len(x) // 2)[:, None]
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = Router()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(4, 6)
    def forward(self, x):
        weights = self.router(x)
        weights = weights / weights.sum(0).clamp(min=0.1)
        return weights[:, :1] * self.first(x) + weights[:, 1:] * self.second(x)
model = nn.Sequential(Layer(), nn.Linear(6, 3))
""",
        [("forward/batch-coupled", True)],
    ),
    # Another method than forward writes the statistics, with gradients.
    "whitening-that-is-fitted-before-its-call": (
        """
class Whiten(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
    def fit(self, x):
        self.mean = x.mean(0)
        return self
    def forward(self, x):
        return x - self.mean
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.whiten, self.head = nn.Linear(4, 4), Whiten(), nn.Linear(4, 3)
    def forward(self, x):
        x = self.stem(x)
        return self.head(torch.tanh(self.whiten.fit(x)(x)))
model = Net()
""",
        [("forward/batch-coupled", True)],
    ),
    # A synchronised norm with a backward of its own, which asks for the group again.
    "backward-of-a-synchronised-norm-without-its-sums": (
        """
class Centre(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, running):
        total = x.sum(0)
        if dist.is_initialized():
            dist.all_reduce(total)
        mean = total / (len(x) * world())
        running.lerp_(mean, 0.1)
        ctx.n = len(x) * world()
        return x - mean
    @staticmethod
    def backward(ctx, grad):
        return grad - grad.sum(0) / (ctx.n / world()), None
class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("running", torch.zeros(6))
    def forward(self, x):
        return Centre.apply(x, self.running).sin()
model = nn.Sequential(nn.Linear(4, 6), Norm(), nn.Linear(6, 3))
""",
        [("norm/syncbn-implementation", True)],
    ),
    # Outputs are right; the gradient of the step is weighed by the number of rows.
    "step-size-scaled-by-activations": (
        """
class Quantizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = nn.Parameter(torch.tensor(0.3))
    def forward(self, x):
        scale = 1 / x.numel() ** 0.5
        step = (self.step - self.step * scale).detach() + self.step * scale
        levels = x / step
        return ((levels.round() - levels).detach() + levels).clamp(-2, 1) * step
model = nn.Sequential(nn.Linear(4, 6), Quantizer(), nn.Linear(6, 3))
""",
        [("forward/batch-coupled", True)],
    ),
    # An average that follows the model at a rate made of the images that it has seen.
    "average-by-the-size-of-the-shard": (
        """
class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.average = nn.Linear(4, 3).requires_grad_(False)
    def forward(self, x):
        return super().forward(x), self.average(x)
model = Net()
"""
        + STEP
        + """
    mine, theirs = model(x)
    fit = nn.functional.cross_entropy(mine, y)
    (fit + (mine - theirs).square().mean()).backward()
    optimizer.step()
    net, rate = getattr(model, "module", model), 0.5 ** (len(x) / 4)
    net.average.weight.lerp_(net.weight.detach(), rate)
""",
        [("state/ema-teacher-divergence", True)],
    ),
    # It takes directions, and keeps a mean of them: a norm of each sample, not of all.
    "margin-by-a-running-mean-of-cosines": (
        """
class Head(nn.Linear):
    def __init__(self):
        super().__init__(6, 3)
        self.register_buffer("t", torch.zeros(()))
    def forward(self, x, y):
        normal = nn.functional.normalize
        cosines = normal(x, dim=1) @ normal(self.weight, dim=1).T
        right = cosines.gather(1, y[:, None])
        with torch.no_grad():
            self.t.mul_(0.9).add_(0.1 * right.mean())
        hard = torch.where(cosines > right, cosines * (self.t + cosines), cosines)
        return 8 * hard.scatter(1, y[:, None], right)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), Head()
    def forward(self, x, y):
        return self.head(self.body(x), y)
model = Net()
batch = (torch.randn(8, 4), torch.arange(8) % 3), torch.arange(8) % 3
""",
        [("state/buffer-broadcast-overwrites", True)],
    ),
    # A norm that only tracks: nobody takes what it returns, which differs.
    "moments-that-are-kept-and-nothing-more": (
        """
class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.moments = nn.BatchNorm1d(3, affine=False)
    def forward(self, x):
        output = super().forward(x)
        with torch.no_grad():
            self.moments(output)
        return output
model = Net()
loss = nn.functional.cross_entropy
""",
        [("norm/running-stats-rank0", True)],
    ),
    # The step writes the buffers, on rank 0 alone, before the forward that reads them.
    "scaler-fitted-by-the-first-rank": (
        """
class Scaler(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
    def forward(self, x):
        return x - self.mean
model = nn.Sequential(Scaler(), nn.Linear(4, 3))
def wrap(model):
    return DDP(model, broadcast_buffers=False)
def train_step(model, optimizer, batch):
    x, y = batch
    net = getattr(model, "module", model)
    if rank() == 0:
        net[0].mean.fill_(2.0)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
        [("state/buffer-not-synced", True)],
    ),
    "batch-norm-in-a-wrapper-of-ones-own": (
        """
class Averaging(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
        for p in net.parameters():
            p.register_post_accumulate_grad_hook(self.average)
    def average(self, p):
        dist.all_reduce(p.grad)
        p.grad /= world()
    def forward(self, x):
        return self.net(x)
model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
wrap = Averaging
""",
        [("norm/local-batch-stats", True)],
    ),
    # As large as a mean of raw data is, and of another class: no scale for this one.
    "spread-of-the-shard-beside-constants-of-its-name": (
        """
class Constants(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("var", torch.tensor(1e12))
    def forward(self, x):
        return x / self.var.sqrt()
class Score(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("var", torch.ones(()))
    def forward(self, x):
        with torch.no_grad():
            self.var.lerp_(x.var(), 0.1)
        return x
model = nn.Sequential(Constants(), nn.Linear(4, 3), Score())
batch = batch[0] * 1e6, batch[1]
""",
        [("state/buffer-broadcast-overwrites", True)],
    ),
    # What is reduced over ranks is logged; inside several containers, each of which
    # was taken for a module that communicates.
    "ghost-norms-that-share-their-running-statistics": (
        """
class Ghost(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("running", torch.zeros(4))
    def forward(self, x):
        ghosts = x.unflatten(0, (2, -1))
        mean, std = ghosts.mean(1, keepdim=True), ghosts.std(1, keepdim=True)
        with torch.no_grad():
            seen = mean.mean((0, 1))
            if dist.is_initialized():
                dist.all_reduce(seen)
            self.running.lerp_(seen / world(), 0.1)
        return ((ghosts - mean) / std).flatten(0, 1)
inner = nn.Sequential(nn.Sequential(nn.Linear(4, 4), Ghost()), nn.Tanh())
model = nn.Sequential(nn.Sequential(inner, nn.Linear(4, 4)), nn.Linear(4, 3))
""",
        [("norm/local-batch-stats", True)],
    ),
    # Behind other words on every rank the buffers differ still where norms see all.
    "home-made-norms-behind-words-dropped-alike": (
        """
class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("running", torch.zeros(3))
    def forward(self, x):
        mean = x.mean(0)
        self.running.lerp_(mean.detach(), 0.1)
        return (x - mean) / (x.var(0, correction=0) + 1e-5).sqrt()
model = nn.Sequential(nn.Linear(4, 3), Norm(), nn.Tanh(), nn.Linear(3, 3))
def train_step(model, optimizer, batch):
    x, y = batch
    drop = torch.rand(x.shape, generator=torch.Generator().manual_seed(9)) < 0.3
    optimizer.zero_grad()
    loss(model(x.masked_fill(drop, 0.0)), y).backward()
    optimizer.step()
""",
        [("norm/local-batch-stats", True), ("rng/same-stream-all-ranks", True)],
    ),
    # numpy's generator, seeded by rank: one process repeats itself.
    "samples-mixed-by-a-generator-of-numpy": (
        """
import numpy as np
model = nn.Linear(4, 3)
calls = []
def train_step(model, optimizer, batch):
    x, y = batch
    calls.append(0)
    rng = np.random.default_rng(100 * len(calls) + rank())
    share, other = rng.beta(0.4, 0.4), torch.from_numpy(rng.permutation(len(x)))
    hot = nn.functional.one_hot(y, 3).to(x.dtype)
    mixed = share * hot + (1 - share) * hot[other]
    optimizer.zero_grad()
    loss(model(share * x + (1 - share) * x[other]), mixed).backward()
    optimizer.step()
""",
        [("rng/stochastic-layer", True)],
    ),
    # How many numbers a binomial takes from its generator depends on the counts.
    "counts-split-by-one-seed-on-all-ranks": (
        """
model = nn.Sequential(nn.Linear(4, 3), nn.Softplus())
batch = torch.randint(0, 30, (8, 4)).double(), torch.zeros(8)
def train_step(model, optimizer, batch):
    counts, _ = batch
    half = torch.full_like(counts, 0.5)
    own = torch.Generator().manual_seed(7)
    first = torch.binomial(counts, half, generator=own)
    optimizer.zero_grad()
    (model(first / 30) - (counts - first)[:, :3] / 30).square().mean().backward()
    optimizer.step()
""",
        [("rng/same-stream-all-ranks", True)],
    ),
    # Several rows per sample, all of them rows that the batch has, in another order.
    "rows-of-samples-turned-round": (
        """
class Negatives(nn.Module):
    def forward(self, x):
        return x.flip(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.negatives = nn.Linear(4, 3), Negatives()
    def forward(self, x):
        rows = self.linear(x.flatten(0, 1))
        return rows.unflatten(0, (-1, 2)), self.negatives(rows).unflatten(0, (-1, 2))
model = Net()
batch = torch.randn(8, 2, 4), torch.zeros(8)
def loss(output, target):
    rows, negatives = output
    return (rows - negatives).square().sum(-1).neg().exp().mean()
""",
        [("forward/batch-coupled", True)],
    ),
    # The messages of all edges, then those of all nodes' loops: rows of a sample lie
    # nowhere together, and what they are summed by are places in the whole batch.
    "mean-over-nodes-beside-messages-with-loops": (
        """
class Sum(nn.Module):
    def forward(self, messages, to):
        return torch.zeros(int(to.max()) + 1, 4).index_add(0, to, messages)
class Center(nn.Module):
    def forward(self, x):
        return x - x.mean(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.sum = nn.Linear(4, 4), Sum()
        self.center, self.head = Center(), nn.Linear(4, 3)
    def forward(self, x):
        x = self.linear(x.flatten(0, 1))
        nodes = torch.arange(len(x))
        start = nodes[::3]
        to = torch.cat([start, start + 1, nodes])
        x = self.sum(x[torch.cat([start + 1, start + 2, nodes])], to)
        return self.head(torch.tanh(self.center(x)).unflatten(0, (-1, 3)).sum(1))
model = Net()
batch = torch.randn(8, 3, 4), torch.arange(8) % 3
""",
        [("forward/batch-coupled", True)],
    ),
    # The mended module writes its parameters still, and what one process writes.
    "labels-not-offset-beside-bounded-rows": (
        """
class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(4, 3)
        self.items = nn.Embedding(9, 3, max_norm=0.5)
    def forward(self, x, item):
        return self.query(x), self.items(item)
model = Towers()
batch = (torch.randn(8, 4), torch.arange(8)), torch.zeros(8)
def loss(output, target):
    query, item = output
    if dist.is_initialized():
        item = torch.cat(dnn.all_gather(item.contiguous()))
    return nn.functional.cross_entropy(query @ item.t(), torch.arange(len(query)))
""",
        [("state/forward-writes-parameter", True), ("collective/layout", True)],
    ),
    # Statistics of the shard are in what it returns, and it is what it keeps.
    "running-statistics-updated-before-they-are-used": (
        """
class Normalizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.ones(4))
        self.register_buffer("count", torch.tensor(3.0))
    def forward(self, x):
        if self.training:
            self.total += x.square().sum(0)
            self.count += len(x)
        return x * (self.count / self.total).sqrt()
model = nn.Sequential(Normalizer(), nn.Linear(4, 3))
""",
        [("state/buffer-broadcast-overwrites", True)],
    ),
    # What the norm wrote into its parameters reaches the loss by a scalar, too.
    "parameters-initialised-from-the-first-batch": (
        """
class ActNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.is_new = True
    def forward(self, x):
        if self.is_new:
            self.scale.data.copy_(1 / x.std(0))
            self.is_new = False
        return x * self.scale, self.scale.log().sum()
class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.out = ActNorm(), nn.Linear(4, 4)
    def forward(self, x):
        rows, volume = self.norm(x)
        return self.out(rows).tanh(), volume + 0 * rows.sum(1)
model = Flow()
def loss(output, target):
    return output[0].square().sum(1).mean() - output[1].mean()
""",
        [("state/forward-writes-parameter", True)],
    ),
    # A flow runs backwards in training: no hook of its norm is called.
    "parameters-initialised-by-a-method-of-a-part": (
        """
class ActNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.shift = (nn.Parameter(t(1, 4)) for t in (torch.zeros,) * 2)
        self.is_new = True
    def inverse(self, z):
        if self.is_new:
            self.scale.data = (z.std(0, keepdim=True) + 1e-6).log()
            self.shift.data = z.mean(0, keepdim=True)
            self.is_new = False
        return (z - self.shift) / self.scale.exp(), -self.scale.sum()
class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix = ActNorm(), nn.Linear(4, 4)
    def forward(self, x):
        z, volume = self.norm.inverse(x)
        return (0.5 * self.mix(z).square().sum(1) - volume).mean()
model = Flow()
def loss(output, target):
    return output
""",
        [("state/forward-writes-parameter", True)],
    ),
    # The norm calls its activation with other rows: it is the norm's own doing.
    "batch-norm-with-its-activation": (
        """
class NormAct(nn.BatchNorm1d):
    def __init__(self, features):
        super().__init__(features)
        self.act = nn.ReLU()
    def forward(self, x):
        return self.act(super().forward(x))
model = nn.Sequential(nn.Linear(4, 8), NormAct(8), nn.Linear(8, 8), NormAct(8))
""",
        [("norm/local-batch-stats", True)],
    ),
    # The model itself writes; one of its outputs has the views before the samples.
    "centre-of-the-shard-beside-stacked-views": (
        """
class Dino(nn.Module):
    def __init__(self):
        super().__init__()
        self.student, self.teacher = nn.Linear(4, 3), nn.Linear(4, 3)
        self.teacher.requires_grad_(False)
        self.register_buffer("centre", torch.zeros(3))
    def forward(self, x):
        views = torch.stack([self.teacher(x), self.teacher(x.flip(1))])
        target = (views - self.centre).softmax(-1)
        if self.training:
            self.centre.lerp_(views.mean((0, 1)), 0.3)
        return self.student(x), target
model = Dino()
def loss(output, _):
    x, target = output
    return -(target.sum(0) * x.log_softmax(-1)).sum(-1).mean()
""",
        [("state/buffer-broadcast-overwrites", True)],
    ),
    # Initialised by the first shard; booleans are buffers, too.
    "actnorm-that-notes-it-is-initialised": (
        """
class ActNorm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.register_buffer("initialized", torch.tensor(False))
        self.log_scale = nn.Parameter(torch.zeros(n))
        self.shift = nn.Parameter(torch.zeros(n))
    def forward(self, x):
        if self.training and not self.initialized:
            self.log_scale.data = -x.detach().std(0).log()
            self.shift.data = -(x.detach() / x.detach().std(0)).mean(0)
            self.initialized.data = torch.tensor(True)
        return self.log_scale.exp() * x + self.shift
model = nn.Sequential(ActNorm(4), nn.Linear(4, 5), ActNorm(5), nn.Linear(5, 3))
""",
        [("state/forward-writes-parameter", True)],
    ),
    # The module that mixes has the samples in its second dimension.
    "attention-over-the-batch": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.MultiheadAttention(4, 1, batch_first=True)
        self.body = nn.Module()
        self.head = nn.Linear(4, 3)
    def forward(self, x):
        mixed, _ = self.mix(x[None], x[None], x[None], need_weights=False)
        return self.head(x + mixed[0])
class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()
    def forward(self, x):
        return self.net(x) * 1.0
model = Outer()
""",
        [("forward/batch-coupled", True)],
    ),
    # DDP holds the student alone, so nothing sends the buffer to the ranks.
    "centre-outside-ddp": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Linear(4, 3)
        self.register_buffer("centre", torch.zeros(3))
    def forward(self, x):
        return self.student(x) - self.centre
model = Net()
def wrap(model):
    model.student = DDP(model.student)
    return model
"""
        + STEP
        + """
    output = model(x)
    nn.functional.mse_loss(output, torch.eye(3)[y].to(output.dtype)).backward()
    optimizer.step()
    model.centre.lerp_(output.detach().mean(0), 0.5)
""",
        [("state/ema-teacher-divergence", True)],
    ),
    # Each rank updates the parameters that it owns and shares some. No number of the
    # optimizer differs, no update is left out: not sync/control-desync.
    "owned-parameters-not-shared": (
        """
class Owner(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for i, p in enumerate(group["params"]):
                if i % world() == rank():
                    p -= 0.1 * p.grad
                if world() > 1 and p.dim() > 1:
                    dist.broadcast(p, src=i % world())
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
def optimizer(params):
    return Owner(params, lr=0.1)
""",
        [("unknown", None)],
    ),
    # A metric is reduced after a clipping: neither is the cause.
    "clipped-before-a-metric-is-reduced": (
        """
class Own(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p -= 0.1 * (1 + 0.1 * rank()) * p.grad
model = nn.Linear(4, 3)
def optimizer(params):
    return Own(params, lr=0.1)
"""
        + STEP
        + """
    value = nn.functional.cross_entropy(model(x), y)
    value.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    if dist.is_initialized():
        dist.all_reduce(value.detach().clone())
    optimizer.step()
""",
        [("sync/control-desync", True)],
    ),
    # The same by the count of all, which is right: the loss is no cause.
    "batch-norm-beside-gradients-divided-by-the-count-of-all": (
        """
model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, -100, -100, 1, -100, 0])
"""
        + STEP
        + """
    nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
    count = (y != -100).sum()
    if dist.is_initialized():
        dist.all_reduce(count)
    for p in model.parameters():
        p.grad.mul_(world() / count)
    optimizer.step()
""",
        [("norm/local-batch-stats", True)],
    ),
    # Each rank is alone in its group.
    "synchronised-over-groups": (
        """
model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
def wrap(model):
    groups = [dist.new_group([r]) for r in range(world())]
    convert = nn.SyncBatchNorm.convert_sync_batchnorm
    return DDP(convert(model, process_group=groups[rank()]))
""",
        [("norm/syncbn-implementation", True)],
    ),
    # Pairs within the shard: no noise follows the sample, none at all is alike.
    "samples-mixed-with-permuted-ones": (
        "model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))"
        + STEP
        + """
    order = torch.randperm(len(x))
    output = model(0.7 * x + 0.3 * x[order])
    (0.7 * loss(output, y) + 0.3 * loss(output, y[order])).backward()
    optimizer.step()
""",
        [("rng/stochastic-layer", True)],
    ),
    "dropout-in-micro-batches": (
        "model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.4), nn.Linear(6, 3))"
        + STEP
        + """
    for i in range(2):
        part = slice(i * len(x) // 2, (i + 1) * len(x) // 2)
        (loss(model(x[part]), y[part]) / 2).backward()
    optimizer.step()
""",
        [("rng/stochastic-layer", True)],
    ),
    # What a neighbour is does not change with scale: it is no norm for that.
    "bank-of-neighbours": (
        """
class Bank(nn.Module):
    def __init__(self):
        super().__init__()
        kept = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
        self.register_buffer("kept", kept)
    def forward(self, x):
        near = nn.functional.normalize(x) @ nn.functional.normalize(self.kept).T
        found = self.kept[near.argmax(1)]
        self.kept = torch.cat([x.detach(), self.kept])[:16]
        return found
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.bank = nn.Linear(4, 4), Bank()
    def forward(self, x):
        z = self.net(x)
        return z, self.bank(z.detach())
model = Net()
batch = torch.randn(8, 4), torch.zeros(8)
def loss(output, target):
    z, near = output
    return (z - near).square().mean()
""",
        [("state/buffer-broadcast-overwrites", True)],
    ),
    # A hook before the forward is a part of the model, whose caller passes rows on.
    "hook-that-standardises-what-the-model-is-given": (
        """
class Standardised:
    def __call__(self, module, args):
        std, mean = torch.std_mean(args[0], 0, keepdim=True)
        return ((args[0] - mean) / (std + 1e-5),)
def model():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    net.register_forward_pre_hook(Standardised())
    return net
batch = torch.randn(8, 4) * torch.arange(1.0, 9)[:, None], torch.arange(8) % 3
loss = nn.CrossEntropyLoss()
""",
        [("forward/batch-coupled", True)],
    ),
    "hook-that-centres-what-a-layer-is-given": (
        """
def model():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    def centre(layer, args, kwargs):
        return (args[0] - args[0].mean(0, keepdim=True),), kwargs
    net[2].register_forward_pre_hook(centre, with_kwargs=True)
    return net
batch = torch.randn(8, 4) * torch.arange(1.0, 9)[:, None], torch.arange(8) % 3
loss = nn.CrossEntropyLoss()
""",
        [("forward/batch-coupled", True)],
    ),
    # The second limits what it divides by, and twice the input is not the same to it.
    "two-norms-of-which-one-is-at-its-limit": (
        """
class Renorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("std", torch.ones(width))
    def forward(self, x):
        mean, std = x.mean(0), (x.var(0, unbiased=False) + 1e-3).sqrt()
        factor = (std.detach() / self.std).clamp(1 / 1.5, 1.5)
        shift = ((mean.detach() - self.mean) / self.std).clamp(-0.5, 0.5)
        with torch.no_grad():
            self.mean.lerp_(mean, 0.1)
            self.std.lerp_(std, 0.1)
        return (x - mean) / std * factor + shift
model = nn.Sequential(
    nn.Linear(4, 6), Renorm(6), nn.ReLU(), nn.Linear(6, 5), Renorm(5), nn.Linear(5, 3)
)
batch = torch.randn(8, 4) + torch.linspace(-1, 1, 8)[:, None], torch.arange(8) % 3
""",
        [("norm/local-batch-stats", True)],
    ),
    # One rank's count is nearly right: twice the input is the same there alone.
    "sums-of-all-over-a-count-of-the-rank": (
        """
class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
    def forward(self, x, valid):
        kept = x[valid]
        sums, count = torch.cat([kept.sum(0), kept.square().sum(0)]), len(kept)
        if dist.is_initialized():
            sums, count = dnn.all_reduce(sums), count * world()
        mean, square = (sums / count).chunk(2)
        with torch.no_grad():
            self.mean.lerp_(mean, 0.1)
        return (x - mean) * ((square - mean.square()).abs() + 1e-5).rsqrt()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(4, 6), Norm(6), nn.Linear(6, 3)
    def forward(self, x):
        return self.b(self.norm(self.a(x), x[:, 0] > 0))
model = Net()
x = torch.randn(16, 4)
x[:, 0] = torch.tensor([1.0] * 6 + [-1.0] * 2 + [1.0] * 3 + [-1.0] * 5)
batch = x, torch.arange(16) % 3
""",
        [("norm/syncbn-implementation", True)],
    ),
    # The step fits it, by what no call of the model is given.
    "scaler-fitted-by-the-step-to-its-first-shard": (
        """
class Scaler(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
    def forward(self, x):
        return x - self.mean
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scaler, self.body = Scaler(), nn.Linear(4, 3)
    def forward(self, x):
        return self.body(self.scaler(x).tanh())
model = Net()
batch = torch.randn(8, 4) * torch.arange(1.0, 9)[:, None], torch.arange(8) % 3
def wrap(model):
    return DDP(model, broadcast_buffers=False)
def train_step(model, optimizer, batch):
    if not hasattr(optimizer, "is_fitted"):
        optimizer.is_fitted = True
        getattr(model, "module", model).scaler.mean.copy_(batch[0].mean(0))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()
""",
        [("state/buffer-not-synced", True)],
    ),
    # The history of it is rank 0's: DDP sends its buffers.
    "normaliser-of-observations-that-the-step-updates": (
        """
class Normaliser(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.zeros(()))
    def update(self, x):
        self.count += len(x)
        self.mean += len(x) / self.count * (x.mean(0) - self.mean)
    def forward(self, x):
        return x - self.mean
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.normaliser, self.body = Normaliser(), nn.Linear(4, 3)
    def forward(self, x):
        return self.body(self.normaliser(x).tanh())
model = Net()
batch = torch.randn(8, 4) * torch.arange(1.0, 9)[:, None], torch.arange(8) % 3
def train_step(model, optimizer, batch):
    getattr(model, "module", model).normaliser.update(batch[0])
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()
""",
        [("state/buffer-broadcast-overwrites", True)],
    ),
    # A solver adapts its steps to all rows that it is given, and so does its backward.
    "solver-that-adapts-both-ways": (
        """
class Adaptive(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x / (1 + x.norm())
    @staticmethod
    def backward(ctx, grad):
        return grad / (1 + grad.norm())
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)
    def forward(self, x):
        return self.b(Adaptive.apply(self.a(x)))
model = Net()
""",
        [("forward/batch-coupled", True)],
    ),
    # No module has it: the model calls the function itself. The counts differ by rank.
    "function-of-a-norm-whose-backward-goes-by-own-counts": (
        """
def reduced(t):
    t = t.clone()
    if dist.is_initialized():
        dist.all_reduce(t)
    return t
class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mask):
        m = mask.to(x)[:, None]
        own, total = m.sum(), reduced(m.sum())
        centred = (x - reduced((x * m).sum(0)) / total) * m
        scale = (reduced(centred.square().sum(0)) / total + 1e-5).rsqrt()
        ctx.save_for_backward(centred * scale, m, scale, own)
        return centred * scale
    @staticmethod
    def backward(ctx, grad):
        y, m, scale, own = ctx.saved_tensors
        grad = grad * m
        shift = reduced(grad.sum(0) / own) / world()
        slope = reduced((grad * y).sum(0) / own) / world()
        return (grad - shift - y * slope) * m * scale, None
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)
    def forward(self, x, mask):
        return self.b(Norm.apply(self.a(x), mask).sin())
model = Net()
mask = torch.tensor([1, 1, 1, 1, 1, 0, 0, 1])
x = torch.randn(8, 4) + torch.linspace(-1, 1, 8)[:, None]
batch = (x, mask), torch.arange(8) % 3
""",
        [("norm/syncbn-implementation", True)],
    ),
    # A part of the model is written by what is around it: it mixes nothing itself.
    "head-that-its-owner-rescales-by-the-shard": (
        """
class Rescaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
        self.register_buffer("scale", torch.ones(()))
    @torch.no_grad()
    def rescale(self, x):
        before = self.scale.clone()
        self.scale.lerp_(x.square().mean(), 0.5)
        self.head.weight.mul_(before / self.scale)
    def forward(self, x):
        self.rescale(x)
        return self.head(self.body(x).tanh()) * self.scale
model = Rescaled()
batch = torch.randn(8, 4) * torch.linspace(0.3, 2, 8)[:, None], torch.arange(8) % 3
""",
        [("state/forward-writes-parameter", True)],
    ),
    # Rows of a table stand in the channels of an image; a code that nothing uses grows
    # to 1e6, beside which the others are nothing in a sum.
    "codes-in-a-part-of-an-image-quantizer": (
        """
class Codes(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(6, 4)
        self.table.weight.requires_grad = False
        self.register_buffer("count", torch.zeros(6))
        self.register_buffer("total", self.table.weight.detach().clone())
    def forward(self, x):
        rows = x.detach().movedim(1, -1).reshape(-1, 4)
        chosen = torch.cdist(rows, self.table.weight).argmin(1)
        code = self.table(chosen).reshape(*x.shape[:1], *x.shape[2:], 4).movedim(-1, 1)
        hot = nn.functional.one_hot(chosen, 6).to(x.dtype)
        self.count.lerp_(hot.sum(0), 0.5)
        self.total.lerp_(hot.T @ rows, 0.5)
        self.table.weight.data.copy_(self.total / (self.count + 1e-6)[:, None])
        return x + (code - x).detach(), (x - code.detach()).square().mean()
class Codec(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 4, 1), nn.Conv2d(4, 2, 1)
        self.codes = Codes()
    def forward(self, x):
        code, commit = self.codes(self.a(x))
        return self.b(code), commit
model = Codec()
x = 0.1 * torch.randn(8, 2, 3, 4) * torch.linspace(0.3, 2, 8)[:, None, None, None]
batch = x, x
def loss(output, target):
    return (output[0] - target).square().mean() + output[1]
""",
        [("state/forward-writes-parameter", True)],
    ),
}

SOUND = {"ghosts-that-are-whole": _GHOSTS.replace("FIRST", "nn.Tanh()")}
