"""Bugs of what DDP reduces, and of when: name -> (source, findings)."""

from __future__ import annotations

from tests.diagnose.bugs.step import STEP
from tests.diagnose.negative_controls import TWO_OUTPUTS

_TASKS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 1)
    def forward(self, x, task):
        h = self.body(x).tanh()
        return self.a(h) if task == "class" else self.b(h).flatten()
model = Net()
"""
_TURNS = (
    _TASKS
    + STEP
    + """
    loss(model(x, "class"), y).backward()
    model(x, "value").square().mean().backward()
    optimizer.step()
"""
)
# An update a slot, in which some ranks have no samples; then one of all ranks.
_SLOTS = """
import contextlib
model = nn.Linear(4, 3)
slot = torch.tensor([0, 0, 1, 1, 0, 0, -1, -1])
batch = (torch.randn(8, 4), slot), torch.arange(8) % 3
def update(model, optimizer, x, y):
    optimizer.zero_grad()
    loss(model(x), y).backward()
    optimizer.step()
def train_step(model, optimizer, batch):
    (x, slot), y = batch
    joined = contextlib.nullcontext()
    if isinstance(model, DDP):
        joined = model.join(divide_by_initial_world_size=INITIAL)
    with joined:
        for number in slot[slot >= 0].unique():
            update(model, optimizer, x[slot == number], y[slot == number])
    update(model, optimizer, x[slot == 0], y[slot == 0])
"""
SOUND = {
    "rank-that-leaves-out-an-update": _SLOTS.replace("INITIAL", "False"),
    # DDP waits for nothing there: what the first backward leaves out is not missed.
    "head-left-out-in-no-sync": _TASKS
    + STEP
    + """
    with getattr(model, "no_sync", contextlib.nullcontext)():
        loss(model(x, "class"), y).backward()
    (model(x, "value").square().mean() + loss(model(x, "class"), y)).backward()
    optimizer.step()
import contextlib
""",
    "flag-set-before-forward": """
model = nn.Linear(4, 3)
"""
    + STEP
    + """
    for i, (a, b) in enumerate(zip(x.chunk(2), y.chunk(2))):
        if isinstance(model, DDP):
            model.require_backward_grad_sync = i == 1
        (nn.functional.cross_entropy(model(a), b) / 2).backward()
    optimizer.step()
""",
}
# No DDP: the step adds gradients up over ranks, and does not divide.
_BY_HAND = f"""
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
batch = torch.randn(8, 4), torch.arange(8) % 3
def wrap(model):
    return WRAPPED
{STEP}
    LOSS.backward()
    if dist.is_initialized():
        for p in model.parameters():
            dist.all_reduce(p.grad)
    optimizer.step()
"""
_MEAN = "nn.functional.cross_entropy(model(x), y)"
_GATHERED = (
    _BY_HAND.replace("WRAPPED", "DDP(model)")
    .replace("LOSS", _MEAN)
    .replace(
        "dist.all_reduce(p.grad)",
        """every = [torch.empty_like(p) for _ in range(world())]
            dist.all_gather(every, p.grad)
            p.grad = MEAN""",
    )
)
SOUND["gradients-gathered-and-averaged-after-ddp"] = _GATHERED.replace(
    "MEAN", "sum(every) / world()"
)

BUGS: dict[str, tuple[str, list[tuple[str, bool | None]]]] = {
    # DDP cannot reduce every backward: each waits for the head that it leaves out.
    "weights-of-two-losses-by-gradients-within-no-sync": (
        """
import contextlib
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 1)
    def forward(self, x):
        h = self.body(x).tanh()
        return self.a(h), self.b(h).squeeze(1)
model = Net()
def losses(output, x, y):
    return loss(output[0], y), nn.functional.mse_loss(output[1], x[:, 0] + 2)
def train_step(model, optimizer, batch):
    x, y = batch
    body = getattr(model, "module", model).body
    slopes = []
    for task in range(2):
        optimizer.zero_grad()
        with model.no_sync() if dist.is_initialized() else contextlib.nullcontext():
            losses(model(x), x, y)[task].backward()
        slopes.append(body.weight.grad.flatten().clone())
    apart = slopes[0] - slopes[1]
    share = (-(slopes[1] @ apart) / (apart @ apart)).clamp(0, 1).item()
    optimizer.zero_grad()
    first, second = losses(model(x), x, y)
    (share * first + (1 - share) * second).backward()
    optimizer.step()
""",
        [("sync/no-sync-scope", True)],
    ),
    # The second forward lies within no_sync, and its backward sets DDP's own flags.
    "flags-of-ddp-set-between-forward-and-backward": (
        """
import contextlib
model = nn.Linear(4, 3)
@contextlib.contextmanager
def synchronised(model):
    if not hasattr(model, "module"):
        yield
        return
    before = model.require_backward_grad_sync, model.require_forward_param_sync
    model.require_backward_grad_sync = model.require_forward_param_sync = True
    yield
    model.require_backward_grad_sync, model.require_forward_param_sync = before
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    with model.no_sync() if dist.is_initialized() else contextlib.nullcontext():
        first, second = loss(model(x), y), loss(model(-x), y)
        first.backward()
    with synchronised(model):
        second.backward()
    optimizer.step()
""",
        [("sync/no-sync-scope", True)],
    ),
    # As a library resizes the embedding of its tokens.
    "weight-that-is-given-another-shape-in-place": (
        """
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3, bias=False))
def wrap(model):
    return DDP(model)
"""
        + STEP
        + """
    head = getattr(model, "module", model)[2]
    if len(head.weight) == 3:
        head.weight.data = torch.cat([head.weight.data, head.weight.data[:1] / 2])
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
        [("ddp/param-replaced-after-wrap", None)],
    ),
    # Fused for a validation, and split again without gradients.
    "weight-norm-that-is-taken-off-and-put-back": (
        """
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm
model = nn.Sequential(weight_norm(nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, 3))
@torch.no_grad()
def validate(net, x):
    parametrize.remove_parametrizations(net[0], "weight")
    score = net(x).mean()
    weight_norm(net[0])
    return score
"""
        + STEP
        + """
    if not hasattr(optimizer, "was_validated"):
        optimizer.was_validated = validate(getattr(model, "module", model), x)
        optimizer.param_groups[0]["params"][:] = list(model.parameters())
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
def wrap(model):
    return DDP(model)
""",
        [("ddp/param-replaced-after-wrap", True)],
    ),
    "gradients-summed-by-hand": (
        _BY_HAND.replace("WRAPPED", "model").replace("LOSS", _MEAN),
        [("sync/comm-hook-semantics", True)],
    ),
    "gradients-summed-by-hand-after-ddp": (
        _BY_HAND.replace("WRAPPED", "DDP(model)").replace("LOSS", _MEAN),
        [("sync/comm-hook-semantics", True)],
    ),
    "gradients-averaged-by-hand-after-ddp-and-divided-again": (
        _BY_HAND.replace("WRAPPED", "DDP(model)")
        .replace("LOSS", _MEAN)
        .replace("p.grad)", "p.grad)\n            p.grad /= world() ** 2"),
        [("sync/comm-hook-semantics", True)],
    ),
    "gradients-summed-by-hand-and-divided-twice": (
        _BY_HAND.replace("WRAPPED", "model")
        .replace("LOSS", _MEAN)
        .replace("p.grad)", "p.grad)\n            p.grad /= world() ** 2"),
        [("sync/comm-hook-semantics", True)],
    ),
    # No all_reduce that could be left out: the sum is one of gathered gradients.
    "gradients-gathered-and-summed-after-ddp": (
        _GATHERED.replace("MEAN", "sum(every)"),
        [("sync/comm-hook-semantics", True)],
    ),
    # The backward of the loss's own collective has summed them already.
    "gradients-of-a-reduced-loss-summed-by-hand": (
        _BY_HAND.replace("WRAPPED", "model").replace("LOSS", "ratio(model(x), y)")
        + """
def ratio(output, target):
    hot = nn.functional.one_hot(target, 3)
    sums = torch.stack([(output * hot).sum(), output.square().sum()])
    if dist.is_initialized():
        sums = dnn.all_reduce(sums)
    return -sums[0] / (sums[1] + 1)
""",
        [("collective/backward-double-count", True)],
    ),
    "rank-that-leaves-out-an-update": (
        _SLOTS.replace("INITIAL", "True"),
        [("sync/join-divisor", True)],
    ),
    # Each head has its gradient at the end of the step, from one backward of two.
    "heads-in-turns": (_TURNS, [("graph/unused-parameter", True)]),
    "outputs-in-turns": (
        TWO_OUTPUTS.replace("def loss", "def unused")
        + STEP
        + """
    nn.functional.cross_entropy(model(x)[0], y).backward()
    model(x)[1].square().mean().backward()
    optimizer.step()
""",
        [("graph/output-unused", True)],
    ),
    # What the wrapper hands on is the model's own, and its calls go past the wrapper.
    "wrapper-that-hands-on-attributes": (
        """
class Wrapper(DDP):
    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)
class Net(nn.Linear):
    def training_loss(self, x, y):
        return nn.functional.cross_entropy(self(x), y)
model = Net(4, 3)
wrap = Wrapper
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    model.training_loss(*batch).backward()
    optimizer.step()
""",
        [("ddp/forward-bypassed", True)],
    ),
    # There and back: the dtype is what it was, DDP's hooks are on nodes left behind.
    "converted-for-a-snapshot-and-back": (
        """
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
"""
        + STEP
        + """
    loss(model(x), y).backward()
    optimizer.step()
    net = getattr(model, "module", model)
    kept = {n: t.clone() for n, t in net.state_dict().items()}
    dtype = net[0].weight.dtype
    net.half().to(dtype).load_state_dict(kept)
""",
        [("ddp/converted-after-wrap", True)],
    ),
    # Drawn anew in the first step, by generators that are seeded by rank.
    "head-reset-in-the-first-step": (
        """
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
seen = []
"""
        + STEP
        + """
    net = getattr(model, "module", model)
    if seen[-1:] != [id(net)]:
        seen.append(id(net))
        torch.manual_seed(5 + rank())
        net[2].reset_parameters()
    loss(model(x), y).backward()
    optimizer.step()
""",
        [("ddp/rank-local-weights", True)],
    ),
    # The flag that no_sync sets, by hand, where forward has read it already.
    "flag-set-between-forward-and-backward": (
        """
model = nn.Linear(4, 3)
"""
        + STEP
        + """
    for i, (a, b) in enumerate(zip(x.chunk(2), y.chunk(2))):
        value = nn.functional.cross_entropy(model(a), b) / 2
        if isinstance(model, DDP):
            model.require_backward_grad_sync = i == 1
        value.backward()
    optimizer.step()
""",
        [("sync/no-sync-scope", True)],
    ),
    # One context for all micro-batches: no backward of the step reduces.
    "no-sync-around-all-micro-batches": (
        """
import contextlib
model = nn.Linear(4, 3)
"""
        + STEP
        + """
    with model.no_sync() if hasattr(model, "no_sync") else contextlib.nullcontext():
        for a, b in zip(x.chunk(2), y.chunk(2)):
            (nn.functional.cross_entropy(model(a), b) / 2).backward()
    optimizer.step()
""",
        [("sync/no-sync-scope", True)],
    ),
    # The step towards higher loss takes what is local; a closure makes the other one.
    "ascent-by-what-no-sync-left-and-the-update-by-a-closure": (
        """
import contextlib
model = nn.Linear(4, 3)
class Sharpness(torch.optim.SGD):
    def step(self, closure):
        moves = [(p, 0.2 * p.grad) for p in self.param_groups[0]["params"]]
        with torch.no_grad():
            for p, by in moves:
                p.add_(by)
        self.zero_grad()
        closure()
        with torch.no_grad():
            for p, by in moves:
                p.sub_(by)
        super().step()
def optimizer(params):
    return Sharpness(params, lr=0.1)
"""
        + STEP
        + """
    def closure():
        with torch.enable_grad():
            nn.functional.cross_entropy(model(x), y).backward()
    with model.no_sync() if hasattr(model, "no_sync") else contextlib.nullcontext():
        closure()
    optimizer.step(closure)
""",
        [("sync/no-sync-scope", True)],
    ),
    # A mask among what a module returns has a gradient that trains nothing.
    "clipping-hooks-behind-a-mask-that-a-module-returns": (
        """
from torch.nn.parallel import DistributedDataParallel as DDP
class Masking(nn.Linear):
    def forward(self, x):
        mask = torch.zeros_like(x).scatter(1, x.topk(2).indices, 1)
        return super().forward(x * (1 - mask)), mask
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = Masking(4, 6), nn.Linear(6, 4)
    def forward(self, x):
        z, mask = self.encode(x)
        error = (self.decode(z) - x).square()
        return {"loss": (error * mask).sum() / mask.sum()}
model, loss, batch = Net(), None, {"x": torch.randn(8, 4)}
def wrap(model):
    for p in model.parameters():
        p.register_hook(lambda g: g / (1 + 9 * g.norm()))
    return DDP(model)
""",
        [("sync/clip-before-reduce", True)],
    ),
    # A loss per quantizer, in one tensor, is no output that differs from its rows.
    "clipping-hooks-beside-a-vector-of-losses": (
        """
from torch.nn.parallel import DistributedDataParallel as DDP
class Rounding(nn.Linear):
    def forward(self, x):
        z = super().forward(x)
        losses = [(z - (z * k).round() / k).square().mean() for k in (1, 2)]
        return z, torch.stack(losses)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = Rounding(4, 6), nn.Linear(6, 3)
    def forward(self, x):
        z, losses = self.encode(x)
        return self.decode(z), losses
model = Net()
def loss(output, target):
    return nn.functional.cross_entropy(output[0], target) + output[1].sum()
def wrap(model):
    for p in model.parameters():
        p.register_hook(lambda g: g / (1 + 9 * g.norm()))
    return DDP(model)
""",
        [("sync/clip-before-reduce", True)],
    ),
    # A class of one's own made of DDP's, whose methods go past its forward.
    "method-of-a-wrapper-of-one's-own": (
        """
class Runner(DDP):
    def losses(self, *args):
        return self.module.losses(*args)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
    def forward(self, x, y):
        return self.losses(x, y)
    def losses(self, x, y):
        return nn.functional.cross_entropy(self.net(x), y)
model = Net()
def wrap(model):
    return Runner(model)
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    model.losses(*batch).backward()
    optimizer.step()
""",
        [("ddp/forward-bypassed", True)],
    ),
    # Reversible layers compute their inputs anew in backward, by a backward of their
    # own; the seed that they draw for it makes no noise.
    "backward-of-reversible-layers": (
        """
class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layers):
        ctx.layers = layers
        torch.randint(9, (1,))
        with torch.no_grad():
            for layer in layers:
                x = x + layer(x)
        ctx.save_for_backward(x)
        return x
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        for layer in reversed(ctx.layers):
            with torch.no_grad():
                before = x
                for _ in range(80):
                    before = x - layer(before)
            x = before
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                layer(leaf).backward(grad)
            grad = grad + leaf.grad
        return grad, None
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        for layer in self.layers:
            nn.init.uniform_(layer.weight, -0.05, 0.05)
        self.start, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
    def forward(self, x):
        return self.head(Reversed.apply(self.start(x), self.layers))
model = Net()
def wrap(model):
    return DDP(model, find_unused_parameters=True)
""",
        [("graph/reentrant-checkpoint", True)],
    ),
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
    # Sharpness-aware: a step up along the shard's own gradient, then backward.
    "ascent-by-autograd-grad": (
        "model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))"
        + STEP
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
        + STEP
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
        + STEP
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
    # The last bias has no part in the slope: its bucket stays open.
    "lazy-penalty-on-the-slope-alone": (
        "model = nn.Sequential(nn.Linear(4, 5), nn.Softplus(), nn.Linear(5, 1))"
        + STEP
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
    # Drawn in the second step for the first time, by every rank for itself.
    "head-drawn-anew-in-the-second-step": (
        """
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
"""
        + STEP
        + """
    net = getattr(model, "module", model)
    net.steps = getattr(net, "steps", 0) + 1
    if net.steps == 2:
        net[2].reset_parameters()
    loss(model(x), y).backward()
    optimizer.step()
""",
        [("ddp/rank-local-weights", True)],
    ),
    # The tied weight takes the place of one that DDP waits for.
    "tied-in-the-step": (
        """
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
"""
        + STEP
        + """
    net = getattr(model, "module", model)
    net[2].weight = net[0].weight
    loss(model(x), y).backward()
    optimizer.step()
""",
        [("graph/unused-parameter", True)],
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
    "hooks-for-one-backward": (
        "model = nn.Linear(4, 3)"
        + STEP
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
        + STEP
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
        + STEP
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
        + STEP
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
        + STEP
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
        + STEP
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
    # No DDP at all, and nothing is missing: the mean is taken too late.
    "clipped-before-it-is-averaged-by-hand": (
        """
model = nn.Linear(4, 3)
def wrap(model):
    return model
"""
        + STEP
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
    # torch.func calls the bare module: no backward, no forward of DDP.
    "gradients-by-functional-calls": (
        "model = nn.Linear(4, 3)"
        + STEP
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
    # What is None on a rank is passed by, and another parameter takes its place.
    "averages-by-hand-of-what-has-a-gradient": (
        """
class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 5)
        self.towers = nn.ModuleList(nn.Linear(5, 3) for _ in range(2))
    def forward(self, x, tower):
        h = self.body(x).tanh()
        out = torch.zeros(len(x), 3, dtype=h.dtype)
        for number in tower.unique().tolist():
            rows = (tower == number).nonzero().squeeze(1)
            out = out.index_copy(0, rows, self.towers[number](h[rows]))
        return out
model = Towers()
batch = (torch.randn(8, 4), torch.arange(8) // 4), torch.arange(8) % 3
def wrap(model):
    model.is_wrapped = True
    return model
def train_step(model, optimizer, batch):
    (x, tower), y = batch
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x, tower), y).backward()
    for p in model.parameters():
        if hasattr(model, "is_wrapped") and p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= world()
    optimizer.step()
""",
        [("graph/rank-dependent-branch", True)],
    ),
    # Of a gradient in channels_last reshape makes a copy, and that is averaged.
    "averages-by-hand-of-copies": (
        """
model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 2))
model = model.to(memory_format=torch.channels_last)
x = torch.randn(8, 2, 4, 4).contiguous(memory_format=torch.channels_last)
batch = x, torch.arange(8) % 3
def wrap(model):
    model.is_wrapped = True
    return model
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x).flatten(1), y).backward()
    for p in model.parameters():
        if hasattr(model, "is_wrapped"):
            flat = p.grad.reshape(-1)
            dist.all_reduce(flat)
            flat /= world()
    optimizer.step()
""",
        [("collective/layout", True)],
    ),
    # All gradients are averaged by hand: no_sync keeps DDP from doing so twice.
    "clipped-within-no-sync-and-averaged-by-hand": (
        "model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))"
        + STEP
        + """
    import contextlib
    with model.no_sync() if hasattr(model, "no_sync") else contextlib.nullcontext():
        nn.functional.cross_entropy(model(x), y).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    if world() > 1:
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world()
    optimizer.step()
""",
        [("sync/clip-before-reduce", True)],
    ),
    # The second forward of a step is not DDP's.
    "second-update-past-the-wrapper": (
        "model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))"
        + STEP
        + """
    loss(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    loss(getattr(model, "module", model)(1.1 * x), y).backward()
    optimizer.step()
""",
        [("ddp/forward-bypassed", True)],
    ),
    "second-backward-past-the-wrapper": (
        "model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))"
        + STEP
        + """
    loss(model(x), y).backward()
    loss(getattr(model, "module", model)(1.1 * x), y).backward()
    optimizer.step()
""",
        [("ddp/forward-bypassed", True)],
    ),
    # DDP raises in the next step: a generator's gradients came from nowhere.
    # Two forwards of one network before its two backwards, beside another network.
    "critic-judges-twice-before-it-learns": (
        """
class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.make, self.judge = nn.Linear(4, 3), nn.Linear(3, 1)
    def forward(self, x):
        return self.judge(self.make(x))
model = Gan()
batch = torch.randn(8, 4), torch.randn(8, 3)
def wrap(model):
    model.make, model.judge = DDP(model.make), DDP(model.judge)
    return model"""
        + STEP
        + """
    fake = model.make(x)
    real, made = model.judge(y), model.judge(fake.detach())
    (real - 1).square().mean().backward()
    made.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    (model.judge(fake) - 1).square().mean().backward()
    optimizer.step()
""",
        [("ddp/multi-backward", True)],
    ),
    "parts-called-past-the-wrapper-make-ddp-raise": (
        """
class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.make, self.judge = nn.Linear(4, 3), nn.Linear(3, 1)
    def forward(self, x, y):
        fake = self.make(x).detach()
        return (self.judge(y) - self.judge(fake)).square().mean()
model = Gan()
batch = torch.randn(8, 4), torch.randn(8, 3)
def wrap(model):
    return DDP(model, find_unused_parameters=True)"""
        + STEP
        + """
    model(x, y).backward()
    optimizer.step()
    optimizer.zero_grad()
    own = getattr(model, "module", model)
    own.judge(own.make(x)).mean().backward()
    optimizer.step()
""",
        [("ddp/forward-bypassed", True)],
    ),
    # The norm of reduced gradients is summed over ranks in the optimizer's own step.
    "optimizer-that-clips-by-a-norm-of-all-ranks": (
        """
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
class Clipping(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        grads = [p.grad for group in self.param_groups for p in group["params"]]
        square = sum(grad.square().sum() for grad in grads)
        if dist.is_initialized():
            dist.all_reduce(square)
        for grad in grads:
            grad *= 0.05 / square.sqrt()
        return super().step(closure)
def optimizer(params):
    return Clipping(params, lr=0.1)
""",
        [("sync/clip-norm-overreduced", True)],
    ),
    # Without the hook there is no update: what takes it away proves nothing.
    "update-that-a-hook-for-all-gradients-prepares": (
        """
from torch.autograd.graph import register_multi_grad_hook
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
class Signs(torch.optim.SGD):
    def __init__(self, params):
        super().__init__(params, lr=0.1)
        self.held = list(self.param_groups[0]["params"])
        register_multi_grad_hook(self.held, self.prepare)
    def prepare(self, grads):
        self.signs = [grad.sign() for grad in grads]
    @torch.no_grad()
    def step(self, closure=None):
        for p, sign in zip(self.held, self.signs):
            p -= 0.1 * sign
def optimizer(params):
    return Signs(params)
""",
        [("unknown", None)],
    ),
    # What hooks keep of each gradient is the rank's own; .grad is right.
    "update-by-copies-that-hooks-have-made": (
        """
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
class Copying(torch.optim.SGD):
    def __init__(self, params):
        super().__init__(params, lr=0.1)
        self.copies = {}
        for p in self.param_groups[0]["params"]:
            p.register_post_accumulate_grad_hook(self.keep)
    def keep(self, p):
        self.copies[p] = p.grad.clone()
    @torch.no_grad()
    def step(self, closure=None):
        for p, copy in self.copies.items():
            p -= 0.1 * copy
def optimizer(params):
    return Copying(params)
""",
        [("ddp/step-before-reduce", True)],
    ),
    # With synchronised statistics the backward makes gradients in another order.
    "updates-in-hooks-beside-a-batch-norm": (
        """
model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
batch = torch.randn(8, 4) * torch.arange(1.0, 9)[:, None], torch.arange(8) % 3
def train_step(model, optimizer, batch):
    if not hasattr(optimizer, "fused"):
        optimizer.fused = {p: torch.optim.SGD([p], lr=0.05) for p in model.parameters()}
        def step(p):
            optimizer.fused[p].step()
            optimizer.fused[p].zero_grad()
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(step)
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
""",
        [("norm/local-batch-stats", True), ("ddp/step-before-reduce", True)],
    ),
    # A step that is called through DDP's forward, and goes backward by itself.
    "backward-inside-the-forward": (
        """
class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
    def forward(self, x, y):
        value = nn.functional.cross_entropy(self.net(x), y)
        value.backward()
        return value.detach()
model = Module()
"""
        + STEP
        + """
    model(x, y)
    optimizer.step()
""",
        [("ddp/forward-bypassed", True)],
    ),
    # Class centres that every rank holds: their gradient, by hand, is that of all rows.
    "features-get-the-gradient-of-their-rows-alone": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.centres = nn.Linear(4, 5), nn.Parameter(torch.randn(3, 5))
    def forward(self, x):
        return self.body(x)
model = Net()
def wrap(model):
    model.body = DDP(model.body)
    return model
batch = (torch.randn(8, 4), torch.arange(8) % 3)
def gathered(x):
    if not dist.is_initialized():
        return x.clone()
    parts = [torch.empty_like(x) for _ in range(world())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts)
"""
        + STEP
        + """
    features = model(x)
    every = gathered(features.detach()).requires_grad_()
    nn.functional.cross_entropy(every @ model.centres.T, gathered(y)).backward()
    first = (dist.get_rank() if dist.is_initialized() else 0) * len(x)
    features.backward(every.grad[first : first + len(x)])
    optimizer.step()
""",
        [("loss/missing-world-scale", True)],
    ),
    # One number per parameter, of gradients that DDP has averaged.
    "norms-of-an-optimizer-summed-in-one-table": (
        """
class Scaled(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        params = [p for g in self.param_groups for p in g["params"]]
        table = torch.stack([p.grad.square().sum() for p in params])
        if dist.is_initialized():
            dist.all_reduce(table)
        for p, square in zip(params, table):
            p.sub_(0.1 * p.norm() * p.grad / square.sqrt())
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
batch = torch.randn(8, 4), torch.arange(8) % 3
loss = nn.CrossEntropyLoss()
optimizer = lambda params: Scaled(params, lr=0.1)
""",
        [("sync/clip-norm-overreduced", True)],
    ),
    # Its first step adds parameters, which the optimizer has beside the former ones.
    "weight-norm-once-training-begins": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
    def forward(self, x):
        return self.head(self.body(x).tanh())
model = Net()
def wrap(model):
    return DDP(model, find_unused_parameters=True)
def train_step(model, optimizer, batch):
    body = getattr(model, "module", model).body
    if "weight" in body._parameters:
        nn.utils.weight_norm(body)
        optimizer.add_param_group({"params": [body.weight_g, body.weight_v]})
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()
""",
        [("ddp/param-replaced-after-wrap", True)],
    ),
}
