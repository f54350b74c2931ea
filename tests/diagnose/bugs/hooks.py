"""Communication hooks of one's own: name -> (source, findings)."""

from __future__ import annotations

from tests.diagnose.bugs.step import STEP

# Labels on two ranks: 3 and 2, then 2 and 3, then 4 and 1.
_WEIGHED = """
model = nn.Linear(4, 3)
LABELS = [[1, -1, 2, 0, 1, -1, -1, 1], [1, -1, -1, 0, 1, 0, -1, 1]]
def batch(step):
    g = torch.Generator().manual_seed(step)
    labels = LABELS[step % 2] if step < 2 else [2, 1, 0, 1, -1, -1, 0, -1]
    return torch.randn(8, 4, generator=g), torch.tensor(labels)
masked = nn.CrossEntropyLoss(ignore_index=-1)
class Share:
    value = 0.5
    def count(self, y):
        mine = (y >= 0).sum().double()
        every = mine.clone()
        if dist.is_initialized():
            dist.all_reduce(every)
        self.value = float(mine / every)
share = Share()
def hook(share, bucket):
    done = dist.all_reduce(bucket.buffer().mul_(FACTOR), async_op=True).get_future()
    return done.then(lambda future: future.value()[0])
def wrap(model):
    ddp = DDP(model)
    ddp.register_comm_hook(share, hook)
    return ddp
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    BEFORE
    masked(model(x), y).backward()
    AFTER
    optimizer.step()
"""
_STALE = _WEIGHED.replace("BEFORE", "").replace("AFTER", "share.count(y)")

BUGS: dict[str, tuple[str, list[tuple[str, bool | None]]]] = {
    # Without the hooks weights grow so that sines of them show what rounding does.
    "hooks-that-keep-rounding-small": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)
    def forward(self, x):
        return self.body(x).sin()
def model():
    torch.manual_seed(1)
    made = Net()
    for p in made.parameters():
        p.register_hook(lambda grad: grad.clamp(-3e4, 3e4) / 3e5)
    return made
def loss(output, target):
    return 3e5 * nn.functional.cross_entropy(output, target)
""",
        [("sync/clip-before-reduce", True)],
    ),
    # A rate for each layer by its own gradient's norm, before the ranks average.
    "rates-of-layers-before-an-exchange-by-hand": (
        """
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
def wrap(model):
    return model
"""
        + STEP
        + """
    loss(model(x), y).backward()
    with torch.no_grad():
        for p in model.parameters():
            p.grad.mul_(p.norm() / p.grad.norm() if p.ndim > 1 else 0.1)
        for p in model.parameters():
            if world() > 1:
                dist.all_reduce(p.grad)
                p.grad /= world()
    optimizer.step()
""",
        [("sync/clip-before-reduce", True)],
    ),
    # One cause: with the shares of the same step all is well.
    "hook-that-weighs-by-the-shares-of-the-step-before": (
        _STALE.replace("FACTOR", "share.value"),
        [("sync/comm-hook-semantics", True)],
    ),
    # Two causes: a hook that adds up does nothing about the ranks' own means.
    "hook-that-adds-up-beside-a-masked-mean": (
        _STALE.replace("FACTOR", "1.0"),
        [("loss/local-normalizer", True), ("sync/comm-hook-semantics", True)],
    ),
    # What goes back through a module is kept by a hook of its own.
    "hook-that-keeps-what-goes-back-in-a-summed-loss": (
        """
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
kept = {}
def keep(layer, into, out):
    kept[layer] = out[0]
for layer in (model[0], model[2]):
    layer.register_full_backward_hook(keep)
"""
        + STEP
        + """
    nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
    assert [len(kept.pop(layer)) for layer in list(kept)] == [len(x)] * 2
    optimizer.step()
""",
        [("loss/sum-reduction", True)],
    ),
    "gradients-brought-to-length-by-post-accumulate-hooks": (
        """
@torch.no_grad()
def unit(parameter):
    parameter.grad.div_(parameter.grad.norm() + 1e-12)
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
batch = torch.randn(8, 4) * torch.arange(1.0, 9)[:, None], torch.arange(8) % 3
hooked = []
def train_step(model, optimizer, batch):
    if not hooked:
        hooked.extend(
            p.register_post_accumulate_grad_hook(unit) for p in model.parameters()
        )
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()
""",
        [("sync/clip-before-reduce", True)],
    ),
    "gradients-of-a-part-multiplied-by-a-hook": (
        """
class Damped:
    factor = 0.25
    def __call__(self, module, grads):
        return tuple(g * self.factor for g in grads)
def model():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    net.damped = Damped()
    net[1].register_full_backward_pre_hook(net.damped)
    return net
def wrap(model):
    model.damped.factor *= world()
    return DDP(model)
batch = torch.randn(8, 4), torch.arange(8) % 3
loss = nn.CrossEntropyLoss()
""",
        [("loss/double-world-scale", True)],
    ),
    "gradients-summed-by-a-hook-before-the-update": (
        """
def reduce(optimizer, args, kwargs):
    if dist.is_initialized():
        for group in optimizer.param_groups:
            for p in group["params"]:
                dist.all_reduce(p.grad)
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
batch = torch.randn(8, 4), torch.arange(8) % 3
loss = nn.CrossEntropyLoss()
def optimizer(params):
    made = torch.optim.SGD(params, lr=0.1)
    made.register_step_pre_hook(reduce)
    return made
""",
        [("sync/comm-hook-semantics", True)],
    ),
    # With one bucket the clipped mean is what one process has.
    "hook-that-clips-before-it-averages": (
        """
def clipped(state, bucket):
    flat = bucket.buffer()
    flat.mul_((0.05 / (flat.norm() + 1e-6)).clamp(max=1.0)).div_(dist.get_world_size())
    work = dist.all_reduce(flat, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
batch = torch.randn(8, 4) * torch.linspace(0.5, 3, 8)[:, None], torch.arange(8) % 3
def wrap(model):
    ddp = DDP(model)
    ddp.register_comm_hook(None, clipped)
    return ddp
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    if not isinstance(model, DDP):
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        for p in model.parameters():
            p.grad.mul_((0.05 / (norm + 1e-6)).clamp(max=1.0))
    optimizer.step()
""",
        [("sync/clip-before-reduce", True)],
    ),
}
SOUND = {
    "hook-that-weighs-by-the-shares-of-the-step": (
        _WEIGHED.replace("BEFORE", "share.count(y)")
        .replace("AFTER", "")
        .replace("FACTOR", "share.value")
    )
}
