"""Bugs of collectives in a loss: name -> (source, findings)."""

from __future__ import annotations

from tests.diagnose.bugs.step import STEP

_VALIDATED = (
    """
class Offset(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("by", torch.ones(3))
    def forward(self, x):
        return x + self.by
model = MODEL
"""
    + STEP
    + """
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if rank() == 0:
        with torch.no_grad():
            model(x[:2])
"""
)

BUGS: dict[str, tuple[str, list[tuple[str, bool | None]]]] = {
    # What the step counts over ranks before its forward is right, and would be counted
    # once more with the samples of all ranks.
    "whitened-by-the-shard-behind-a-count-of-all": (
        """
class Critic(nn.Linear):
    def __init__(self):
        super().__init__(4, 1)
        self.register_buffer("count", torch.tensor(4.0))
        self.register_buffer("total", torch.zeros(4))
    def observe(self, x):
        count, total = x.new_tensor(len(x)), x.sum(0)
        if dist.is_initialized():
            dist.all_reduce(count)
            dist.all_reduce(total)
        self.count += count
        self.total += total
    def forward(self, x):
        return super().forward(x - self.total / self.count).squeeze(1)
model = Critic()
batch = torch.randn(8, 4) * torch.linspace(0.2, 2, 8)[:, None], torch.arange(8.0)
def train_step(model, optimizer, batch):
    x, reward = batch
    inner = getattr(model, "module", model)
    inner.observe(x)
    with torch.no_grad():
        gain = reward - inner(x)
    gain = (gain - gain.mean()) / gain.var(unbiased=False).sqrt()
    optimizer.zero_grad()
    value = model(x)
    ((value - reward).square().mean() - (gain * value).mean()).backward()
    optimizer.step()
""",
        [("loss/batch-coupled", True)],
    ),
    # With the samples of all ranks the step would gather them once more.
    "one-of-two-views-that-a-step-gathers": (
        """
class Views(nn.Linear):
    def forward(self, a, b):
        a, b = super().forward(a), super().forward(b)
        centre = dnn.all_reduce(a.mean(0)) / world() if world() > 1 else a.mean(0)
        return a - centre, b
model = Views(4, 3)
x = torch.randn(8, 4) * torch.linspace(0.2, 2, 8)[:, None]
batch = (x, x + 0.3 * torch.randn(8, 4)), torch.zeros(8)
def gather(z):
    return torch.cat(dnn.all_gather(z)) if dist.is_initialized() else z
def spread(z):
    return torch.relu(1 - (z.var(0) + 1e-4).sqrt()).mean()
def train_step(model, optimizer, batch):
    a, b = model(*batch[0])
    optimizer.zero_grad()
    ((a - b).square().mean() + spread(gather(a)) + spread(b)).backward()
    optimizer.step()
""",
        [("loss/batch-coupled", True)],
    ),
    # As Lightning's all_gather does it, by default.
    "gather-with-gradient-under-no-grad": (
        """
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5))
batch = torch.randn(8, 4) + torch.linspace(-1, 1, 8)[:, None], torch.zeros(8)
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    z = nn.functional.normalize(model(batch[0]), dim=1)
    keys, labels = z.roll(1, 1), torch.arange(len(z))
    if dist.is_initialized():
        with torch.no_grad():
            parts = dnn.all_gather(keys.contiguous())
        whole, labels = torch.cat(parts), labels + rank() * len(z)
        keys = whole if whole.requires_grad else torch.cat(
            [*parts[:rank()], keys, *parts[rank() + 1 :]]
        )
    nn.functional.cross_entropy(z @ keys.T / 0.3, labels).backward()
    optimizer.step()
""",
        [("collective/no-autograd", True)],
    ),
    # A library makes itself a group where it finds none.
    "mean-loss-of-a-library-that-makes-its-group": (
        """
def group():
    if dist.is_initialized():
        store = dist.PrefixStore("again", dist.distributed_c10d._get_default_store())
        dist.of_all = dict(store=store, rank=rank(), world_size=world())
    elif hasattr(dist, "of_all"):
        dist.init_process_group("gloo", **dist.of_all)
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
batch = torch.randn(8, 4), torch.arange(8) % 3
def train_step(model, optimizer, batch):
    group()
    optimizer.zero_grad()
    value = nn.functional.cross_entropy(model(batch[0]), batch[1])
    if dist.is_initialized():
        value = value.clone()
        dist.all_reduce(value)
        value /= dist.get_world_size()
    value.backward()
    optimizer.step()
""",
        [("collective/no-autograd", True)],
    ),
    # Rows of unrelated samples are added up, where they belong side by side.
    "embeddings-reduced-where-they-are-to-be-gathered": (
        """
model = nn.Linear(4, 5)
def loss(output, target):
    z = output.clone()
    if dist.is_initialized():
        dist.all_reduce(z)
    z = z - z.mean(0)
    spread = torch.relu(1 - (z.square().mean(0) + 1e-4).sqrt()).mean()
    return output.square().mean() + spread
""",
        [("collective/layout", True)],
    ),
    # There is no reduce with a gradient: each rank trains on its share of its own loss.
    "loss-reduced-to-the-first-rank-and-sent": (
        """
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.arange(8) % 3
def loss(output, target):
    value = nn.functional.cross_entropy(output, target)
    if dist.is_initialized():
        value = value.unsqueeze(0)
        dist.reduce(value, dst=0)
        value = value / world()
        dist.broadcast(value, src=0)
    return value.sum()
""",
        [("collective/no-autograd", True)],
    ),
    # No collective: neighbours pass rows on, and no gradient comes back.
    "rows-round-a-ring-whose-backward-gives-nothing": (
        """
class PassOn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows):
        got, to = torch.empty_like(rows), (rank() + 1) % world()
        calls = [dist.P2POp(dist.isend, rows.contiguous(), to)]
        calls += [dist.P2POp(dist.irecv, got, (rank() - 1) % world())]
        for call in dist.batch_isend_irecv(calls):
            call.wait()
        return got
    @staticmethod
    def backward(ctx, grad):
        return torch.zeros_like(grad)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)
    def forward(self, x):
        return self.a(x).tanh(), self.b(x).tanh()
model = Net()
def loss(output, _):
    a, b = output
    logits = a @ b.T
    total = nn.functional.softplus(logits * (1 - 2 * torch.eye(len(a)))).sum()
    for _ in range(world() - 1):
        b = PassOn.apply(b)
        total = total + nn.functional.softplus(a @ b.T).sum()
    return total / len(a)
""",
        [("collective/no-autograd", True)],
    ),
    # Its backward sums over ranks, and takes the world size as well; beside a mean.
    "own-gather-whose-backward-counts-twice": (
        """
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows):
        parts = [torch.empty_like(rows) for _ in range(world())]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)
    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad.chunk(world())[rank()] * world()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.probe = nn.Linear(4, 3), nn.Linear(4, 3)
    def forward(self, x):
        return self.body(x).tanh(), self.probe(x)
model = Net()
def loss(output, target):
    rows, logits = output
    rows = Gather.apply(rows) if dist.is_initialized() else rows
    spread = (1 - rows.std(0)).relu().mean()
    return 3 * spread + nn.functional.cross_entropy(logits, target)
""",
        [("collective/backward-double-count", True)],
    ),
    # The gradient of what a rank gathered goes to the first rank's rows.
    "own-rows-in-the-place-of-the-first-rank": (
        """
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
def gathered(rows):
    if not dist.is_initialized():
        return rows
    parts = [torch.zeros_like(rows) for _ in range(world())]
    dist.all_gather(parts, rows.detach())
    parts[0] = rows
    return torch.cat(parts)
def loss(output, target):
    every, labels = gathered(output), gathered(target.double())
    apart = torch.cdist(every, every) * (labels[:, None] - labels)
    return nn.functional.cross_entropy(output, target) + world() * apart.square().mean()
""",
        [("collective/layout", True)],
    ),
    # One tower is right and the other is not: no two causes for that.
    "items-gathered-with-the-own-ones-put-back": (
        """
class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Linear(4, 3), nn.Linear(4, 3)
    def forward(self, x, y):
        return self.users(x), self.items(y)
model = Towers()
batch = (torch.randn(8, 4), torch.randn(8, 4)), None
def loss(output, target):
    users, items = output
    if world() > 1:
        every = [torch.empty_like(items) for _ in range(world())]
        dist.all_gather(every, items)
        every[rank()] = items
        items = torch.cat(every)
    labels = torch.arange(len(users)) + rank() * len(users)
    return nn.functional.cross_entropy(users @ items.T, labels)
""",
        [("collective/no-autograd", True)],
    ),
    # A layer that exchanges its weight's gradient itself, for DDP to do it once more.
    "weight-gradient-summed-in-its-own-backward": (
        """
class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.T
    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        of_weight = grad.T @ x
        if dist.is_initialized():
            dist.all_reduce(of_weight)
        return grad @ weight, of_weight
class Layer(nn.Linear):
    def forward(self, x):
        return Exchange.apply(x, self.weight) + self.bias
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), Layer(6, 3))
""",
        [("collective/backward-double-count", True)],
    ),
    # Both views of a rank, then those of the next; labels repeat view by view.
    "views-gathered-rank-by-rank": (
        """
class Views(nn.Linear):
    def forward(self, x):
        rows = super().forward(torch.cat([x, x.flip(1)]))
        return torch.stack(nn.functional.normalize(rows, dim=1).chunk(2), 1)
model = Views(4, 3)
def loss(output, target):
    rows = torch.cat(output.unbind(1))
    if dist.is_initialized():
        rows = torch.cat(dnn.all_gather(rows))
        every = [torch.zeros_like(target) for _ in range(world())]
        dist.all_gather(every, target)
        target = torch.cat(every)
    same = (target[:, None] == target[None]).repeat(2, 2) & ~torch.eye(len(rows)).bool()
    scores = rows @ rows.T
    return ((scores.logsumexp(1, keepdim=True) - scores) * same).sum(1).mean()
""",
        [("collective/layout", True)],
    ),
    # Own anchors against the vectors of all ranks, whose gradients are lost on the way.
    "own-anchors-against-all-times-the-world-size": (
        "model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))"
        + STEP
        + """
    z = nn.functional.normalize(model(x), dim=1)
    every, first = z, len(z) * rank()
    if world() > 1:
        parts = [torch.empty_like(z) for _ in range(world())]
        dist.all_gather(parts, z.contiguous())
        parts[rank()] = z
        every = torch.cat(parts)
    own = torch.arange(len(z)) + first
    scores = z @ every.T / 0.3
    value = scores.logsumexp(1) - scores.roll(1, 1).gather(1, own[:, None]).squeeze(1)
    (value.mean() * world()).backward()
    optimizer.step()
""",
        [("collective/no-autograd", True), ("loss/double-world-scale", True)],
    ),
    # Only what goes backward says what the loss is.
    "loss-reduced-in-place-before-backward": (
        "model = nn.Linear(4, 3)"
        + STEP
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
    # The gather's backward counts twice; a temperature and a bias do not go through it.
    "gather-that-counts-twice-beside-a-temperature-and-a-bias": (
        """
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(world())]
        dist.all_gather(parts, x)
        ctx.rows = slice(rank() * len(x), (rank() + 1) * len(x))
        return torch.cat(parts)
    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad[ctx.rows] * world()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)
        self.heat, self.bias = (nn.Parameter(torch.ones(())) for _ in range(2))
    def forward(self, x):
        return self.a(x), self.b(x), self.heat.exp(), self.bias
model = Net()
batch = torch.randn(8, 4), torch.zeros(8)
def loss(output, target):
    a, b, heat, bias = output
    if dist.is_initialized():
        a, b = Gather.apply(a), Gather.apply(b)
    sign = 2 * torch.eye(len(a), dtype=a.dtype) - 1
    return -nn.functional.logsigmoid(sign * (heat * a @ b.T + bias)).sum(1).mean()
""",
        [("collective/backward-double-count", True)],
    ),
    # Nothing is gathered, so nothing can be in another order.
    "variance-around-the-own-mean-beside-a-norm-of-all-ranks": (
        """
model = nn.Linear(4, 1)
batch = torch.randn(8, 4) + torch.arange(8)[:, None] / 4, torch.randn(8)
def summed(x):
    return dnn.all_reduce(x) if dist.is_initialized() else x
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    out = model(x)[:, 0]
    count = len(out) * world()
    mean = summed(out.sum()) / count
    variance = summed((out - out.mean()).square().sum()) / count
    ((out - mean) * (variance + 1e-6).rsqrt() - y).square().mean().backward()
    square = sum(p.grad.square().sum() for p in model.parameters())
    if dist.is_initialized():
        dist.all_reduce(square)
    for p in model.parameters():
        p.grad.mul_(0.1 / square.sqrt())
    optimizer.step()
""",
        [("loss/batch-coupled", True), ("sync/clip-norm-overreduced", True)],
    ),
    # DDP's forward sends buffers to all ranks: it is a collective.
    "validation-of-rank-0-through-the-wrapper": (
        _VALIDATED.replace("MODEL", "nn.Sequential(nn.Linear(4, 3), Offset())"),
        [("sync/collective-mismatch", True)],
    ),
    # The graph has saved a buffer, and to see what the module is like it runs again.
    "shares-summed-without-autograd-beside-a-buffer-in-the-graph": (
        """
class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)
        self.register_buffer("codes", torch.randn(3, 5))
    def forward(self, x):
        shares = (self.body(x) @ self.codes).softmax(-1)
        mean = shares.mean(0)
        if dist.is_initialized():
            mean = mean.clone()
            dist.all_reduce(mean)
            mean = mean / world()
        return shares.log(), (mean * mean.log()).sum()
model = Coder()
batch = torch.randn(8, 4), torch.arange(8) % 5
def loss(output, target):
    return nn.functional.nll_loss(output[0], target) + output[1]
""",
        [("collective/no-autograd", True)],
    ),
    # With the first shard on all ranks a class has no sample: that run says nothing.
    "means-of-classes-that-a-shard-does-not-have": (
        """
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 2, 2])
def loss(output, target):
    every, labels = output, target
    if dist.is_initialized():
        every = torch.stack(dnn.all_gather(output), 1).flatten(0, 1)
        labels = target.new_empty(world() * len(target))
        dist.all_gather_into_tensor(labels, target)
    onehot = nn.functional.one_hot(labels, 3).to(output.dtype)
    means = onehot.T @ every / onehot.sum(0)[:, None]
    return nn.functional.cross_entropy(-torch.cdist(output, means).square(), target)
""",
        [("loss/batch-coupled", True)],
    ),
    # Rows get their gradient on their own rank, the temperature on every rank.
    "own-rows-among-gathered-ones-times-world-and-a-temperature": (
        """
class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 5), nn.Linear(4, 5)
        self.scale = nn.Parameter(torch.tensor(0.3))
    def forward(self, x):
        return self.a(x), self.b(x.flip(1)), self.scale.exp()
model = Clip()
def everyone(rows):
    if world() == 1:
        return rows
    every = [torch.empty_like(rows) for _ in range(world())]
    dist.all_gather(every, rows.detach())
    every[rank()] = rows
    return torch.cat(every)
def loss(output, target):
    logits = output[2] * everyone(output[0]) @ everyone(output[1]).T
    return world() * nn.functional.cross_entropy(logits, torch.arange(len(logits)))
""",
        [("loss/double-world-scale", True)],
    ),
    # Every cell but the diagonal is a wrong pair; ranks have theirs further right.
    "pairs-by-a-diagonal-that-is-not-shifted": (
        """
class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(4, 5), nn.Linear(4, 5)
    def forward(self, x):
        text = self.text(x.flip(1))
        if dist.is_initialized():
            text = torch.cat(dnn.all_gather(text))
        return self.image(x) @ text.T
model = Towers()
def loss(logits, target):
    signs = 2 * torch.eye(*logits.shape, dtype=logits.dtype) - 1
    return nn.functional.softplus(-signs * logits).sum() / len(logits)
""",
        [("collective/layout", True)],
    ),
    "positives-read-from-a-diagonal-that-is-not-shifted": (
        """
model = nn.Linear(4, 5)
def loss(output, target):
    every = torch.cat(dnn.all_gather(output)) if dist.is_initialized() else output
    logits = output @ every.T
    return (logits.logsumexp(1) - logits.diag()).mean()
""",
        [("collective/layout", True)],
    ),
    # The backward of the gather takes gradients that are not contiguous apart wrongly.
    "gathered-with-gradient-and-turned": (
        """
model = nn.Linear(4, 6)
def loss(output, target):
    views = output.unflatten(1, (2, 3))
    views = torch.cat(dnn.all_gather(views)) if dist.is_initialized() else views
    z = nn.functional.normalize(views.transpose(0, 1).flatten(0, 1), dim=1)
    labels = torch.arange(len(z)).roll(len(z) // 2)
    return nn.functional.cross_entropy(z @ z.T, labels)
""",
        [("collective/backend-defect", True)],
    ),
    # The momentum encoder is the same on all ranks: what differs is the labels.
    "gathered-keys-of-an-encoder-that-forward-moves": (
        """
class Moco(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(4, 5), nn.Linear(4, 5)
        self.key.requires_grad_(False)
    def forward(self, x):
        with torch.no_grad():
            for q, k in zip(self.query.parameters(), self.key.parameters()):
                k.mul_(0.9).add_(q, alpha=0.1)
            keys = self.key(x.flip(1))
            if dist.is_initialized():
                every = [torch.empty_like(keys) for _ in range(world())]
                dist.all_gather(every, keys)
                keys = torch.cat(every)
        logits = self.query(x) @ keys.T
        return nn.functional.cross_entropy(logits, torch.arange(len(x)))
model = Moco()
loss = lambda output, target: output
""",
        [("collective/layout", True)],
    ),
    # Two towers in no_sync, and nothing wrong but where the labels start.
    "labels-without-offset-beside-towers-in-no-sync": (
        """
import contextlib
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))
    def forward(self, x):
        return nn.functional.normalize(self.net(x), dim=1)
model = Net()
batch = (torch.randn(8, 4), torch.randn(8, 4))
def loss(output, target):
    keys = torch.cat(dnn.all_gather(target)) if dist.is_initialized() else target
    return nn.functional.cross_entropy(6 * output @ keys.T, torch.arange(len(output)))
"""
        + STEP
        + """
    with model.no_sync() if dist.is_initialized() else contextlib.nullcontext():
        queries, keys = model(x), model(y)
    loss(queries, keys).backward()
    optimizer.step()
""",
        [("collective/layout", True), ("sync/no-sync-scope", True)],
    ),
    "hardest-negative-among-detached-keys": (
        """
class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(4, 6)
    def forward(self, x):
        return self.a(x), self.b(x.flip(1))
model = Towers()
def loss(output, target):
    query, key = output
    parts = [torch.empty_like(key) for _ in range(world())]
    if dist.is_initialized():
        dist.all_gather(parts, key.detach())
    parts[rank()] = key
    scores = query @ torch.cat(parts).T
    own = torch.arange(len(query)) + rank() * len(query)
    right = scores.gather(1, own[:, None])
    hardest = scores.scatter(1, own[:, None], -9.0).amax(1, keepdim=True)
    return (1 + hardest - right).relu().mean()
""",
        [("collective/no-autograd", True)],
    ),
}
# Without buffers nothing is sent, and the module inside sends nothing ever.
SOUND = {
    "validation-of-rank-0-without-buffers": _VALIDATED.replace(
        "MODEL", "nn.Sequential(nn.Linear(4, 3))"
    ),
    "validation-of-rank-0-past-the-wrapper": _VALIDATED.replace(
        "MODEL", "nn.Sequential(nn.Linear(4, 3), Offset())"
    ).replace("model(x[:2])", "getattr(model, 'module', model)(x[:2])"),
}
