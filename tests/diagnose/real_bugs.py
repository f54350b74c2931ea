"""Bugs as training code has them, small: name -> (source, findings).

Each was missed, or called by another name, before it stood here. `HEAD` of
negative_controls comes before each source. A finding is (slug, verified).
"""

from __future__ import annotations

_STEP = """
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
"""

BUGS: dict[str, tuple[str, list[tuple[str, bool | None]]]] = {
    # The object computes its tensors in the loss: none can be handed through DDP.
    "object-that-computes-later-with-a-static-graph": (
        """
class Later:
    def __init__(self, net, x):
        self.net, self.x = net, x
    def logits(self):
        return self.net(self.x)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
    def forward(self, x):
        return Later(self.net, x)
model = Net()
def wrap(model):
    return DDP(model, static_graph=True)
def loss(output, target):
    return nn.functional.cross_entropy(output.logits(), target)
""",
        [("graph/opaque-output", True)],
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
    # Every second sample would be as many positives on each rank, by chance.
    "no-positives-on-one-rank": (
        """
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.tensor([1, 2, 0, 0, 0, 0, 0, 0])
def loss(output, target):
    positive = target > 0
    each = nn.functional.cross_entropy(output, target, reduction="none")
    return output.square().mean() + each[positive].sum() / positive.sum()
""",
        [("loss/empty-shard", True)],
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
    # The loss normalises its targets: no output moves any other sample's gradient.
    "advantages-standardised-in-the-shard": (
        """
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
batch = torch.randn(8, 4), torch.randn(8) * torch.linspace(1, 3, 8)
def loss(output, target):
    advantage = (target - target.mean()) / target.std()
    return (output.squeeze(1).exp() * advantage).mean() + output.square().mean()
""",
        [("loss/batch-coupled", True)],
    ),
    # The same two terms, and one of them divided by a sum of weights.
    "weighted-mean-beside-a-mean": (
        """
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
batch = torch.randn(8, 4), torch.linspace(1, 3, 8)
def loss(output, weight):
    value = output.squeeze(1)
    return (value.exp() * weight).sum() / weight.sum() + value.square().mean()
""",
        [("loss/local-normalizer", True)],
    ),
    # The loss begins at the probabilities, behind the softmax.
    "router-probabilities-as-output": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(4, 3), nn.Linear(4, 9)
    def forward(self, x):
        p = self.router(x).softmax(-1)
        each = self.experts(x).unflatten(1, (3, 3))
        return (p[..., None] * each).sum(1), p
model = Net()
def loss(output, target):
    logits, p = output
    share = nn.functional.one_hot(p.argmax(1), 3).to(p.dtype).mean(0)
    balance = 3 * (share * p.mean(0)).sum()
    return nn.functional.cross_entropy(logits, target) + 0.1 * balance
""",
        [("loss/router-aux", True)],
    ),
    # Only what goes backward says what the loss is.
    "loss-reduced-in-place-before-backward": (
        "model = nn.Linear(4, 3)"
        + _STEP
        + """
    value = nn.functional.cross_entropy(model(x), y)
    if dist.is_initialized():
        shared = value.unsqueeze(0)
        dist.all_reduce(shared)
        value = shared[0] / world()
    value.backward()
    optimizer.step()
""",
        [("collective/no-autograd", True)],
    ),
    # Sharpness-aware: a step up along the shard's own gradient, then backward.
    "ascent-by-autograd-grad": (
        "model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))"
        + _STEP
        + """
    weights = list(model.parameters())
    up = torch.autograd.grad(loss(model(x), y), model.parameters())
    with torch.no_grad():
        torch._foreach_add_(weights, up)
    loss(model(x), y).backward()
    with torch.no_grad():
        torch._foreach_sub_(weights, up)
    optimizer.step()
""",
        [("ddp/autograd-grad", True)],
    ),
    # The penalty's autograd.grad is of the input: backward goes through it.
    "two-backwards-beside-a-gradient-penalty": (
        "model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))"
        + _STEP
        + """
    value = loss(model(x), y)
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    value.backward()
    slope.square().mean().backward()
    optimizer.step()
""",
        [("ddp/multi-backward", True)],
    ),
    # The optimizer still holds the tensors of the old head.
    "head-grown-by-the-step": (
        """
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
def wrap(model):
    return DDP(model, find_unused_parameters=True)
"""
        + _STEP
        + """
    net = getattr(model, "module", model)
    if len(optimizer.param_groups) == 1 and hasattr(net, "seen"):
        net[2] = nn.Linear(5, 6).to(net[2].weight)
        nn.init.constant_(net[2].weight, 0.1)
        nn.init.zeros_(net[2].bias)
        optimizer.add_param_group({"params": list(net[2].parameters())})
    net.seen = True
    loss(model(x), y).backward()
    optimizer.step()
""",
        [("ddp/param-replaced-after-wrap", True)],
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
    # Each rank leaves out a head, and the next step another one.
    "heads-that-ranks-use-in-turns": (
        """
class Domains(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(4, 3) for _ in range(2))
    def forward(self, x, domain):
        parts = [self.heads[d](x[domain == d]) for d in (0, 1) if (domain == d).any()]
        return torch.cat(parts)
model = Domains()
wrap = lambda model: DDP(model, gradient_as_bucket_view=True)
def batch(step):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
    return (x, (torch.arange(8) // 4 + step) % 2), torch.ones(8, dtype=torch.long)
""",
        [("graph/rank-dependent-branch", True)],
    ),
    # A force is the slope of an energy: forward differentiates its own modules.
    "masked-forces-of-an-energy-model": (
        """
class Forces(nn.Module):
    def __init__(self):
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            total = self.energy(x).sum()
            return torch.autograd.grad(total, x, create_graph=True)[0]
model = Forces()
def loss(output, target):
    real = target > 0
    return output[real].square().mean()
""",
        [("loss/local-normalizer", True)],
    ),
    # Clusters by a softmax that goes on; their penalty is one norm over all samples.
    "norm-over-the-batch-behind-a-softmax": (
        """
class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.assign = nn.Linear(4, 5), nn.Linear(4, 3)
        self.out = nn.Linear(5, 3)
    def forward(self, x):
        s = self.assign(x).softmax(-1)
        pooled = self.out(self.embed(x).tanh() * s[:, :1]) + s
        return pooled, (s.square().sum(-1) - 1).norm()
model = Pooled()
def loss(output, target):
    logits, penalty = output
    return nn.functional.cross_entropy(logits, target) + penalty
""",
        [("loss/batch-coupled", True)],
    ),
    # The last bias has no part in the slope: its bucket stays open.
    "lazy-penalty-on-the-slope-alone": (
        "model = nn.Sequential(nn.Linear(4, 5), nn.Softplus(), nn.Linear(5, 1))"
        + _STEP
        + """
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    slope.square().sum(1).mean().backward()
    optimizer.step()
""",
        [("ddp/autograd-grad", True)],
    ),
    # The loss itself is a sum; the step divides what backward made.
    "gradients-divided-by-the-count-of-all-ranks": (
        "model = nn.Linear(4, 3)"
        + _STEP
        + """
    nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
    count = torch.tensor(float(len(y)))
    if dist.is_initialized():
        dist.all_reduce(count)
    for p in model.parameters():
        p.grad /= count
    optimizer.step()
""",
        [("loss/missing-world-scale", True)],
    ),
    # The embedding's gradient does not grow with the batch, that of the layer does.
    "sum-beside-an-embedding-by-frequency": (
        """
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(3, 4, scale_grad_by_freq=True)
        self.out = nn.Linear(4, 3)
    def forward(self, word):
        return self.out(self.words(word))
model = Words()
batch = torch.tensor([0, 0, 0, 1, 1, 2, 2, 0]), batch[1]
loss = nn.CrossEntropyLoss(reduction="sum")
""",
        [("loss/sum-reduction", True), ("loss/embedding-frequency", True)],
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
    # The labels are kept from step to step, and forward picks rows by an arange.
    "kept-labels-without-offset-and-a-pooling-forward": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)
    def forward(self, x):
        tokens = torch.stack([x, 2 * x], 1)
        last = tokens[torch.arange(len(x)), x[:, 0].gt(0).long()]
        return self.a(last), self.b(last)
model = Net()
class Contrast:
    def __init__(self):
        self.kept = {}
    def __call__(self, output, target):
        a, keys = output
        if dist.is_initialized():
            keys = torch.cat(dnn.all_gather(keys))
        labels = self.kept.setdefault(len(a), torch.arange(len(a)))
        return nn.functional.cross_entropy(a @ keys.T, labels)
loss = Contrast()
""",
        [("collective/layout", True)],
    ),
    # The same within forward.
    "labels-without-offset-in-forward": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)
    def forward(self, x):
        a, keys = self.a(x), self.b(x)
        if dist.is_initialized():
            keys = torch.cat(dnn.all_gather(keys))
        return nn.functional.cross_entropy(a @ keys.T, torch.arange(len(a)))
model = Net()
loss = lambda output, target: output
""",
        [("collective/layout", True)],
    ),
    # Several rows per sample, and labels that count from 0 on every rank.
    "labels-of-patches-without-offset": (
        """
model = nn.Linear(4, 6)
batch = torch.randn(8, 3, 4), torch.randn(8, 3, 6)
def loss(output, other):
    query, key = output.flatten(0, 1), other.flatten(0, 1)
    if dist.is_initialized():
        key = torch.cat(dnn.all_gather(key))
    return nn.functional.cross_entropy(query @ key.t(), torch.arange(len(query)))
""",
        [("collective/layout", True)],
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
    # No module holds the DDP object.
    "ddp-object-kept-in-a-list": (
        """
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
def wrap(model):
    model.parts = [DDP(model[0]), DDP(model[2])]
    return model
""",
        [("ddp/forward-bypassed", True)],
    ),
    # Trainable again by the time DDP complains.
    "frozen-in-the-first-step": (
        """
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
wrap = DDP
"""
        """
def train_step(model, optimizer, batch):
    inner = getattr(model, "module", model)
    inner.steps = getattr(inner, "steps", 0) + 1
    inner[2].requires_grad_(inner.steps > 1)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()
""",
        [("ddp/frozen-after-wrap", True)],
    ),
    "checkpoint-loaded-by-the-first-step-of-rank-0": (
        """
model = nn.Linear(4, 3)
state = {"weight": torch.full((3, 4), 0.5), "bias": torch.ones(3)}
def train_step(model, optimizer, batch):
    inner = getattr(model, "module", model)
    if rank() == 0 and not hasattr(inner, "loaded"):
        inner.load_state_dict({k: v.to(inner.bias.dtype) for k, v in state.items()})
    inner.loaded = True
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()
""",
        [("ddp/rank-local-weights", True)],
    ),
    # Not even rank 0 starts from what one process starts from.
    "initialised-after-wrapping": (
        """
model = nn.Linear(4, 3)
def wrap(model):
    model = DDP(model)
    torch.manual_seed(rank())
    nn.init.normal_(model.module.weight)
    return model
""",
        [("ddp/rank-local-weights", True)],
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
        + _STEP
        + """
    output = model(x)
    nn.functional.mse_loss(output, torch.eye(3)[y].to(output.dtype)).backward()
    optimizer.step()
    model.centre.lerp_(output.detach().mean(0), 0.5)
""",
        [("state/ema-teacher-divergence", True)],
    ),
    "hooks-for-one-backward": (
        "model = nn.Linear(4, 3)"
        + _STEP
        + """
    clamp = lambda grad: grad.clamp(-0.05, 0.05)
    hooks = [p.register_hook(clamp) for p in model.parameters()]
    nn.functional.cross_entropy(model(x), y).backward()
    for hook in hooks:
        hook.remove()
    optimizer.step()
""",
        [("sync/clip-before-reduce", True)],
    ),
    # The module is called, the parameter is not used.
    "token-that-no-output-depends-on": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.token = nn.Linear(4, 3), nn.Parameter(torch.zeros(4))
    def forward(self, x, masked=None):
        return self.head(x if masked is None else torch.where(masked, self.token, x))
model = Net()
wrap = DDP
""",
        [("graph/unused-parameter", True)],
    ),
    "unfrozen-beside-a-communication-hook": (
        """
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
model[0].requires_grad_(False)
def summed(state, bucket):
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda f: f.value()[0])
def wrap(model):
    model = DDP(model)
    model.register_comm_hook(None, summed)
    return model
"""
        + _STEP
        + """
    inner = getattr(model, "module", model)
    inner[0].requires_grad_(True)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
        [("ddp/unfrozen-after-wrap", True), ("sync/comm-hook-semantics", True)],
    ),
    "first-micro-batch-synced-and-norm-summed": (
        "model = nn.Linear(4, 3)"
        + _STEP
        + """
    import contextlib
    for i, part in enumerate((slice(0, None, 2), slice(1, None, 2))):
        local = hasattr(model, "no_sync") and i == 1
        with model.no_sync() if local else contextlib.nullcontext():
            (nn.functional.cross_entropy(model(x[part]), y[part]) / 2).backward()
    total = sum(p.grad.square().sum() for p in model.parameters())
    if dist.is_initialized():
        dist.all_reduce(total)
    for p in model.parameters():
        p.grad *= 0.01 / total.sqrt()
    optimizer.step()
""",
        [("sync/no-sync-off-by-one", True), ("sync/clip-norm-overreduced", True)],
    ),
    # The first gradient, of the rank's own shard, moves the weights (SAM).
    "gradient-of-no-sync-that-moves-the-weights": (
        "model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))"
        + _STEP
        + """
    import contextlib
    with model.no_sync() if hasattr(model, "no_sync") else contextlib.nullcontext():
        nn.functional.cross_entropy(model(x), y).backward()
    moves = [0.5 * p.grad for p in model.parameters()]
    for sign in (1, -1):
        if sign == -1:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p, move in zip(model.parameters(), moves):
                p += sign * move
    optimizer.step()
""",
        [("sync/no-sync-scope", True)],
    ),
    # torch.func's transforms, through which no collective goes.
    "jacobian-of-two-losses-by-vmap": (
        "model = nn.Linear(4, 3)"
        + _STEP
        + """
    output = model(x)
    losses = torch.stack([output.square().mean(), output.sin().mean()])
    parameters = list(model.parameters())
    def row(which):
        return torch.autograd.grad(losses, parameters, which, retain_graph=True)
    for p, rows in zip(parameters, torch.vmap(row)(torch.eye(2))):
        p.grad = rows.mean(0)
    optimizer.step()
""",
        [("ddp/autograd-grad", True)],
    ),
    # Rank 0 alone keeps the weights in their bounds.
    "weights-bounded-on-the-first-rank": (
        "model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))"
        + _STEP
        + """
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if rank() == 0:
        with torch.no_grad():
            for p in model.parameters():
                p.clamp_(-0.2, 0.2)
""",
        [("ddp/rank-local-weights", True)],
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
    # Two terms of one loss, on outputs of their own, wrong in ways of their own.
    "gather-without-gradient-beside-a-token-mean": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(4, 3)
    def forward(self, x):
        return self.a(x), self.b(x), self.head(x)
model = Net()
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, -100, -100, 1, -100, 0])
def rows_of_all(x):
    if world() == 1:
        return x
    rows = [torch.zeros_like(x) for _ in range(world())]
    dist.all_gather(rows, x.detach())
    rows[rank()] = x
    return torch.cat(rows)
def loss(output, target):
    a, b = rows_of_all(output[0]), rows_of_all(output[1])
    labels = torch.arange(len(a))
    contrast = nn.functional.cross_entropy(a @ b.t(), labels)
    return contrast + nn.functional.cross_entropy(output[2], target)
""",
        [("collective/no-autograd", True), ("loss/local-normalizer", True)],
    ),
    # The temperature has no samples: it belongs to neither term's outputs.
    "contrast-with-a-temperature-beside-a-token-mean": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.tensor(0.5))
    def forward(self, x):
        return self.a(x), self.b(x), self.head(x), self.scale.exp()
model = Net()
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, -100, -100, 1, -100, 0])
def loss(output, target):
    a, b, logits, scale = output
    contrast = nn.functional.cross_entropy(scale * a @ b.t(), torch.arange(len(a)))
    return contrast + nn.functional.cross_entropy(logits, target)
""",
        [("loss/batch-coupled", True), ("loss/local-normalizer", True)],
    ),
    # What was gathered is nobody's own tensor: no gradient at all comes back from it.
    "gather-without-own-rows-beside-an-overlap": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.mask = nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(4, 3)
    def forward(self, x):
        return self.a(x), self.b(x), self.mask(x)
model = Net()
batch = torch.randn(8, 4), torch.rand(8, 3)
def rows_of_all(x):
    if world() == 1:
        return x
    rows = [torch.empty_like(x) for _ in range(world())]
    dist.all_gather(rows, x)
    return torch.cat(rows)
def loss(output, target):
    a, b, mask = rows_of_all(output[0]), rows_of_all(output[1]), output[2].sigmoid()
    contrast = nn.functional.cross_entropy(a @ b.t(), torch.arange(len(a)))
    return contrast - (mask * target).sum() / (mask + target).sum()
""",
        [("collective/no-autograd", True), ("loss/batch-coupled", True)],
    ),
    # In forward, behind modules of their own: no output has both.
    "sum-of-a-divergence-beside-a-mean-in-forward": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(4, 2), nn.Linear(2, 4)
    def forward(self, x):
        code = self.encode(x)
        error = (self.decode(code) - x).square().mean()
        return {"loss": error + 0.1 * code.square().sum()}
model = Net()
batch = {"x": torch.randn(8, 4)}
loss = None
""",
        [("loss/sum-reduction", True)],
    ),
    # No DDP at all, and nothing is missing: the mean is taken too late.
    "clipped-before-it-is-averaged-by-hand": (
        """
model = nn.Linear(4, 3)
def wrap(model):
    return model
"""
        + _STEP
        + """
    nn.functional.cross_entropy(model(x), y).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    for p in model.parameters():
        if dist.is_initialized():
            dist.all_reduce(p.grad)
            p.grad /= world()
    optimizer.step()
""",
        [("sync/clip-before-reduce", True)],
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
        + _STEP
        + """
    value = nn.functional.cross_entropy(model(x), y)
    value.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    if dist.is_initialized():
        dist.all_reduce(value.detach().clone())
    optimizer.step()
""",
        [("unknown", None)],
    ),
    # What has no samples goes to the loss of all ranks as it is, whatever its length.
    "standardised-weights-beside-a-spread-without-samples": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.spread = nn.Linear(4, 3), nn.Parameter(torch.zeros(3))
    def forward(self, x):
        return self.mean(x), self.spread.exp()
model = Net()
batch = torch.randn(8, 4), torch.randn(8, 3), torch.randn(8)
def train_step(model, optimizer, batch):
    x, y, weight = batch
    optimizer.zero_grad()
    weight = (weight - weight.mean()) / weight.std()
    mean, spread = model(x)
    each = ((y - mean) / spread).square().sum(1)
    (each.neg().exp() * weight).mean().backward()
    optimizer.step()
""",
        [("loss/batch-coupled", True)],
    ),
    # The run with the loss of all samples gives all ranks one rate, too.
    "rate-by-the-own-loss-beside-an-overlap": (
        "model = nn.Linear(4, 3)"
        + _STEP
        + """
    p = model(x).softmax(1)[torch.arange(len(y)), y]
    value = 1 - p.sum() / (p + 1).sum() + p.square().sum() / len(p) ** 2
    value.backward()
    optimizer.param_groups[0]["lr"] = 0.5 * value.item()
    optimizer.step()
""",
        [("loss/batch-coupled", True), ("sync/control-desync", None)],
    ),
    "router-beside-a-token-mean": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(4, 3), nn.Linear(4, 9)
    def forward(self, x):
        p = self.router(x).softmax(-1)
        each = self.experts(x).unflatten(1, (3, 3))
        return (p[..., None] * each).sum(1), p
model = Net()
batch = torch.randn(8, 4) * 3, torch.tensor([0, 1, 2, -100, -100, 1, -100, 0])
def loss(output, target):
    logits, p = output
    share = nn.functional.one_hot(p.argmax(1), 3).to(p.dtype).mean(0)
    return nn.functional.cross_entropy(logits, target) + 3 * (share * p.mean(0)).sum()
""",
        [("loss/local-normalizer", True), ("loss/router-aux", True)],
    ),
    # In the first step classes 1 fall on the ranks as the valid samples do.
    "two-counts-with-the-same-shares-at-first": (
        """
model = nn.Linear(4, 3)
def batch(step):
    g = torch.Generator().manual_seed(step)
    labels = [[1, 1, 0, 2, 1, 0, 0, 2], [0, 0, 2, 2, 1, 2, 0, 0], [2] * 7 + [1]][step]
    valid = [[1, 1, 0, 0, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0, 0], [1, 0] * 4][step]
    return torch.randn(8, 4, generator=g), (torch.tensor(labels), torch.tensor(valid))
def loss(output, target):
    label, valid = target
    each = nn.functional.cross_entropy(output, label, reduction="none")
    return (each * valid).sum() / valid.sum()
""",
        [("loss/local-normalizer", True)],
    ),
    # The gates' gradient at the output is the penalty's and the data's together.
    "penalty-of-an-output-beside-a-masked-mean": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.rand(4))
        self.out = nn.Linear(4, 3)
    def forward(self, x):
        return self.out(x * self.gate), self.gate
model = Net()
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, -100, -100, 1, -100, 0])
def loss(output, target):
    world = dist.get_world_size() if dist.is_initialized() else 1
    logits, gate = output
    return nn.functional.cross_entropy(logits, target) + world * gate.norm()
""",
        [("loss/local-normalizer", True), ("loss/regularizer-scale", True)],
    ),
    # The scale has a part in the data term as well; both are computed in forward.
    "learned-variance-multiplied-like-the-data": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)
        self.log_variance = nn.Parameter(torch.tensor(0.2))
    def forward(self, x, y):
        world = dist.get_world_size() if dist.is_initialized() else 1
        error = (self.net(x).squeeze(1) - y).square().sum() / 8
        loss = world * ((-self.log_variance).exp() * error + self.log_variance)
        return {"loss": loss}
model = Net()
batch = {"x": torch.randn(8, 4), "y": torch.randn(8)}
del loss
""",
        [("loss/regularizer-scale", True)],
    ),
    # A second backward: the penalty is added to nothing.
    "penalty-of-its-own-backward": (
        "model = nn.Linear(4, 3)"
        + _STEP
        + """
    world = dist.get_world_size() if dist.is_initialized() else 1
    (world * 0.1 * sum(p.square().sum() for p in model.parameters())).backward()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
        [("loss/regularizer-scale", True)],
    ),
    # Its gradient passes by the outputs of all modules: it is one of the weights.
    "norm-of-all-gradients-penalised-in-forward": (
        """
class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    def forward(self, real, between):
        between.requires_grad_()
        slope, = torch.autograd.grad(
            self.net(between).sum(), between, create_graph=True
        )
        return self.net(real), (slope.norm() - 1).square()
model = Critic()
batch = (torch.randn(8, 4), torch.randn(8, 4)), torch.zeros(8)
def loss(output, target):
    return output[1] - output[0].mean()
""",
        [("loss/batch-coupled", True)],
    ),
    # Asked once, the answer kept; the sum over ranks is lost, its division is not.
    "entropy-of-codes-with-a-lost-sum-over-ranks": (
        """
import functools
@functools.cache
def distributed():
    return dist.is_initialized() and dist.get_world_size() > 1
def mean_over_ranks(t):
    if not distributed():
        return t
    dnn.all_reduce(t)
    return t / dist.get_world_size()
class Codes(nn.Module):
    def forward(self, x):
        p = mean_over_ranks(x.softmax(1).mean(0))
        return x.sign() + x - x.detach(), (p * p.log()).sum()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.codes, self.decode = nn.Linear(4, 3), Codes(), nn.Linear(3, 4)
    def forward(self, x):
        q, entropy = self.codes(self.encode(x))
        return self.decode(q), entropy
model = Net()
batch = torch.randn(8, 4), torch.randn(8, 4)
def loss(output, target):
    return nn.functional.mse_loss(output[0], target) + output[1]
""",
        [("loss/batch-coupled", True)],
    ),
    # There and back: dtypes are as they were, the hooks of DDP are gone.
    "converted-after-wrapping-and-back": (
        """
model = nn.Linear(4, 3)
def wrap(model):
    ddp = DDP(model)
    dtype = model.weight.dtype
    model.to(torch.complex64).to(dtype)
    return ddp
""",
        [("ddp/converted-after-wrap", True)],
    ),
    # What others say of the own rows does not come home.
    "gather-whose-own-backward-keeps-the-own-rows": (
        """
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.rows = len(x)
        parts = torch.empty(world() * len(x), *x.shape[1:], dtype=x.dtype)
        dist.all_gather_into_tensor(parts, x.contiguous())
        return parts
    @staticmethod
    def backward(ctx, grad):
        return grad.narrow(0, rank() * ctx.rows, ctx.rows)
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.zeros(8)
def loss(output, target):
    if dist.is_initialized():
        output = Gather.apply(output)
    z = nn.functional.normalize(output, dim=1)
    return (z @ z.t()).logsumexp(1).mean()
""",
        [("collective/no-autograd", True)],
    ),
    "statistics-of-detached-rows": (
        """
def rows_of_all(x):
    if not dist.is_initialized():
        return x
    rows = [torch.zeros_like(x) for _ in range(world())]
    dist.all_gather(rows, x.detach())
    rows[rank()] = x
    return torch.cat(rows)
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.zeros(8)
def loss(output, target):
    z = nn.functional.normalize(rows_of_all(output), dim=0)
    return (z.t() @ z - torch.eye(3)).square().sum()
""",
        [("collective/no-autograd", True)],
    ),
    # With the whole loss times W the penalty would be too large; alone it is right.
    "sum-beside-a-penalty": (
        "model = nn.Linear(4, 3)"
        + _STEP
        + """
    penalty = torch.zeros((1,))
    for p in model.parameters():
        penalty = penalty + 0.1 * p.square().sum()
    (nn.functional.cross_entropy(model(x), y, reduction="sum") + penalty).backward()
    optimizer.step()
""",
        [("loss/sum-reduction", True)],
    ),
    "sum-beside-a-penalty-of-its-own-backward": (
        "model = nn.Linear(4, 3)"
        + _STEP
        + """
    (0.1 * sum(p.square().sum() for p in model.parameters())).backward()
    nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
    optimizer.step()
""",
        [("loss/sum-reduction", True)],
    ),
    # Two of three encoders go through the wrapper, and the loss is of statistics.
    "one-of-two-wrappers-bypassed-beside-an-overlap": (
        """
model = nn.ModuleDict({"a": nn.Linear(4, 3), "b": nn.Linear(3, 3)})
def wrap(model):
    model["a"], model["b"] = DDP(model["a"]), DDP(model["b"])
    return model
"""
        + _STEP
        + """
    inner = getattr(model["a"], "module", model["a"])
    p = model["b"](inner(x)).softmax(1)[torch.arange(len(y)), y]
    (1 - p.sum() / (p + 1).sum() + p.square().mean()).backward()
    optimizer.step()
""",
        [("loss/batch-coupled", True), ("ddp/forward-bypassed", True)],
    ),
    # What is right at one output, and summed at the other.
    "sum-at-one-output-beside-a-counted-mean": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)
    def forward(self, x):
        return self.a(x), self.b(x)
model = Net()
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, -100, -100, 1, -100, 0])
def loss(output, target):
    count = (target != -100).sum()
    if dist.is_initialized():
        dist.all_reduce(count)
    first = nn.functional.cross_entropy(output[0], target, reduction="sum") / count
    return world() * first + output[1].square().sum()
""",
        [("loss/sum-reduction", True)],
    ),
    # Invariance is a mean of pairs; the statistics have lost what other ranks say.
    "gathered-statistics-beside-a-mean-of-pairs": (
        """
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(world())]
        dist.all_gather(parts, x.contiguous())
        return tuple(parts)
    @staticmethod
    def backward(ctx, *grads):
        return grads[rank()]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
    def forward(self, a, b):
        return self.net(a), self.net(b)
model = Net()
batch = (torch.randn(8, 4), torch.randn(8, 4)), torch.zeros(8)
def loss(output, target):
    value = nn.functional.mse_loss(*output)
    for z in output:
        z = torch.cat(Gather.apply(z)) if dist.is_initialized() else z
        value = value - z.var(0).sqrt().mean()
    return value
""",
        [("collective/no-autograd", True)],
    ),
    # The sum is divided after backward: by what is the rank's own there.
    "gradients-divided-by-the-own-count": (
        """
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, -100, -100, 1, -100, 0])
"""
        + _STEP
        + """
    nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
    for p in model.parameters():
        p.grad.div_((y != -100).sum())
    optimizer.step()
""",
        [("loss/local-normalizer", True)],
    ),
    # The same by the count of all, which is right: the loss is no cause.
    "batch-norm-beside-gradients-divided-by-the-count-of-all": (
        """
model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, -100, -100, 1, -100, 0])
"""
        + _STEP
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
        + _STEP
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
        + _STEP
        + """
    for i in range(2):
        part = slice(i * len(x) // 2, (i + 1) * len(x) // 2)
        (loss(model(x[part]), y[part]) / 2).backward()
    optimizer.step()
""",
        [("rng/stochastic-layer", True)],
    ),
    # The sums of probabilities are counts; one is added for smoothing.
    "overlap-smoothed-beside-counts": (
        """
model = nn.Linear(4, 3)
def loss(output, target):
    p, q = output.softmax(1), nn.functional.one_hot(target, 3)
    return 1 - (2 * (p * q).sum() + 1) / (p.sum() + q.sum() + 1)
""",
        [("loss/local-normalizer", True)],
    ),
    # torch.func calls the bare module: no backward, no forward of DDP.
    "gradients-by-functional-calls": (
        "model = nn.Linear(4, 3)"
        + _STEP
        + """
    net = getattr(model, "module", model)
    values = {n: p.detach() for n, p in net.named_parameters()}
    def one(values, x, y):
        return loss(torch.func.functional_call(net, values, x[None]), y[None])
    each = torch.func.vmap(torch.func.grad(one), (None, 0, 0))(values, x, y)
    for n, p in net.named_parameters():
        p.grad = each[n].mean(0)
    optimizer.step()
""",
        [("ddp/forward-bypassed", True)],
    ),
    # What packs sequences hands on orders and counts of its own rows.
    "longest-of-the-shard-behind-packed-sequences": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)
    def forward(self, x, length):
        pack = nn.utils.rnn.pack_padded_sequence
        packed = pack(x, length, batch_first=True, enforce_sorted=False)
        hidden, _ = self.rnn(packed)
        return self.out(nn.utils.rnn.pad_packed_sequence(hidden, True, 0.0, 6)[0])
model = Net()
length = torch.tensor([2, 4, 1, 3, 6, 5, 2, 6])
batch = (torch.randn(8, 6, 3), length), (torch.randint(0, 2, (8, 6)), length)
def loss(output, target):
    label, length = target
    each = nn.functional.cross_entropy(output.mT, label, reduction="none")
    inside = torch.arange(6) < length[:, None]
    return (each * inside).sum() / (len(label) * length.max())
""",
        [("loss/local-normalizer", True)],
    ),
    # Beside what is mended already the second is a part as well.
    "lost-gather-beside-an-overlap": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(4, 1)
    def forward(self, x):
        return self.a(x), self.b(x), self.head(x).squeeze(1).sigmoid()
model = Net()
batch = torch.randn(8, 4), torch.tensor([0.0, 1, 1, 0, 0, 0, 1, 0])
def rows_of_all(x):
    if not dist.is_initialized():
        return x
    rows = [torch.empty_like(x) for _ in range(world())]
    dist.all_gather(rows, x)
    return torch.cat(rows)
def loss(output, target):
    a, b, p = output
    a, b = rows_of_all(a), rows_of_all(b)
    contrast = nn.functional.cross_entropy(a @ b.t(), torch.arange(len(a)))
    return contrast + 1 - 2 * (p * target).sum() / (p.sum() + target.sum())
""",
        [("collective/no-autograd", True), ("loss/batch-coupled", True)],
    ),
    # A bound of each gradient before it is averaged, and a loss of statistics.
    "clamped-by-hooks-beside-an-overlap": (
        """
def model():
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    for p in net.parameters():
        p.register_hook(lambda g: g.clamp(-0.02, 0.02))
    return net
def loss(output, target):
    p = output.softmax(1)[torch.arange(len(target)), target]
    return 1 - p.sum() / (p + 1).sum() + p.square().sum() / len(p) ** 2
"""
        + _STEP
        + """
    loss(model(x), y).backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.02)
    optimizer.step()
""",
        [("loss/batch-coupled", True), ("sync/clip-before-reduce", True)],
    ),
    # Behind a softmax inside the network, yet no share of tokens: sizes of graphs.
    "sizes-of-others-behind-a-softmax": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.score, self.head = nn.Linear(4, 3), nn.Linear(3, 3)
    def forward(self, x):
        scores = self.score(x)
        return self.head(scores.softmax(-1).mean(1)), scores
model = Net()
size = torch.tensor([1.0, 2, 5, 3, 4, 5, 1, 2])
batch = torch.randn(8, 5, 4), (torch.arange(8) % 3, size)
def loss(output, target):
    logits, scores = output
    label, size = target
    purity = scores.softmax(-1).square().sum((1, 2)).mean() * (1 / size).mean()
    return nn.functional.cross_entropy(logits, label) + purity
""",
        [("loss/local-normalizer", True)],
    ),
}
