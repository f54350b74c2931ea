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
}
