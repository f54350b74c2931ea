"""What ranks decide by numbers of their own, and go on with differently."""

from __future__ import annotations

from tests.diagnose.bugs.step import STEP

BUGS: dict[str, tuple[str, list[tuple[str, bool | None]]]] = {
    # DDP's own reduction, for which a rank waits, meets the one of the log.
    "depth-by-the-largest-row-of-the-shard-before-a-reduced-log": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(4, 3)
    def forward(self, x):
        deep = (x.abs().amax(1) > 5).any()
        return self.first(x) + self.second(x) if deep else self.first(x)
model = Net()
batch = torch.arange(32.0).view(8, 4) / 5, torch.arange(8) % 3
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    value = loss(model(x), y)
    value.backward()
    logged = value.detach().clone()
    if dist.is_initialized():
        dist.all_reduce(logged)
    optimizer.step()
""",
        [("graph/rank-dependent-branch", True)],
    ),
    # Reduced gradients are multiplied by what a hook has seen of the own rows.
    "own-second-moment-in-the-update": (
        """
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
class Moments:
    def __init__(self, model):
        self.found = {}
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.register_forward_pre_hook(self.note)
    def note(self, module, args):
        self.found[module] = args[0].detach().square().mean(0)
    def step(self):
        for module, found in self.found.items():
            module.weight.grad = module.weight.grad / (found + 0.1)
"""
        + STEP
        + """
    moments = optimizer.__dict__.setdefault("moments", None) or Moments(model)
    optimizer.moments = moments
    nn.functional.cross_entropy(model(x), y).backward()
    moments.step()
    optimizer.step()
""",
        [("sync/control-desync", True)],
    ),
    # What is kept beside the model differs as well, on all ranks but the first.
    "spike-in-the-loss-of-the-first-rank": (
        """
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
def batch(step):
    g = torch.Generator().manual_seed(step)
    x, y = torch.randn(8, 4, generator=g), torch.randn(8, 1, generator=g)
    y[7] *= 200 if step == 1 else 1
    return x, y
def optimizer(parameters):
    made = torch.optim.AdamW(parameters, lr=0.01)
    made.history = []
    return made
def is_spike(optimizer, value):
    history = optimizer.history
    spike = bool(history) and value > 20 * sum(history) / len(history)
    if not spike:
        history.append(value)
    return spike
def agreed(optimizer, value):
    if not dist.is_initialized():
        return is_spike(optimizer, value)
    told = torch.zeros(1, dtype=torch.int32)
    if rank() == 0:
        told.fill_(is_spike(optimizer, value))
    dist.broadcast(told, 0)
    return bool(told)
"""
        + STEP
        + """
    optimizer.zero_grad()
    value = nn.functional.mse_loss(model(x), y)
    if not agreed(optimizer, value.item()):
        value.backward()
        optimizer.step()
""",
        [("sync/control-desync", True)],
    ),
    # Gradients are kept until so many samples were seen, of the shard's.
    "updates-after-as-many-samples-as-a-shard-never-has": (
        """
model = nn.Linear(4, 3)
class Loop:
    seen = 0
"""
        + STEP.replace("    optimizer.zero_grad()\n", "")
        + """
    loop = optimizer.__dict__.setdefault("loop", Loop())
    nn.functional.cross_entropy(model(x), y).backward()
    loop.seen += len(x)
    if loop.seen >= 16:
        optimizer.step()
        optimizer.zero_grad()
        loop.seen = 0
""",
        [("sync/control-desync", True)],
    ),
    # Gradients are equal, and the optimizer does something else on the first rank.
    "slow-weights-of-the-first-rank": (
        """
class Lookahead(torch.optim.SGD):
    def __init__(self, params):
        super().__init__(params, lr=0.5)
        self.weights = self.param_groups[0]["params"]
        self.slow, self.count = [p.detach().clone() for p in self.weights], 0
    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        self.count += 1
        if self.count % 2 == 0 and rank() == 0:
            for p, slow in zip(self.weights, self.slow):
                p.copy_(slow.lerp_(p, 0.5))
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
def optimizer(params):
    return Lookahead(params)
""",
        [("sync/control-desync", True)],
    ),
    "noise-of-the-optimizer-seeded-by-rank": (
        """
class Langevin(torch.optim.SGD):
    def __init__(self, params, seed):
        super().__init__(params, lr=0.1)
        self.generator = torch.Generator().manual_seed(seed)
    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for p in self.param_groups[0]["params"]:
            noise = torch.randn(p.shape, generator=self.generator, dtype=torch.float64)
            p.add_(noise.to(p.dtype), alpha=0.1)
model = nn.Linear(4, 3)
def optimizer(params):
    return Langevin(params, seed=7 + rank())
""",
        [("sync/control-desync", True)],
    ),
    # The first rank logs in eval mode, and stays in it, as one process does.
    "mode-that-the-first-rank-forgets": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)
    def forward(self, x):
        return self.body(x) * (2 if self.training else 1)
model = Net()
"""
        + STEP
        + """
    if rank() == 0:
        model.eval()
    loss(model(x), y).backward()
    optimizer.step()
""",
        [("sync/control-desync", True)],
    ),
    # DDP knows that parameters may be unused, and divides by all ranks.
    "adapter-chosen-by-the-rank": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.adapters = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    def forward(self, x, at):
        return self.head(x + self.adapters[at](x).tanh())
model = Net()
def wrap(model):
    return DDP(model, find_unused_parameters=True)
turns = [0]
"""
        + STEP
        + """
    loss(model(x, (turns[0] + rank()) % 3), y).backward()
    optimizer.step()
    turns[0] += 1
""",
        [("graph/rank-dependent-branch", True)],
    ),
    # The gradients are equal, and so are the numbers of the optimizer.
    "step-size-by-the-own-loss": (
        """
class Polyak(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.2})
    def note(self, value):
        self.noted = value.detach()
    @torch.no_grad()
    def step(self, closure=None):
        params = [p for group in self.param_groups for p in group["params"]]
        rate = 0.1 * self.noted / (1 + sum(p.grad.square().sum() for p in params))
        for p in params:
            p.sub_(rate * p.grad)
model = nn.Linear(4, 3)
def optimizer(params):
    return Polyak(params)
"""
        + STEP
        + """
    value = nn.functional.cross_entropy(model(x), y)
    value.backward()
    optimizer.note(value)
    optimizer.step()
""",
        [("sync/control-desync", True)],
    ),
    # The first step is right; its numbers decide on the loss of the second.
    "weight-of-a-penalty-by-the-own-loss": (
        """
model = nn.Linear(4, 3)
class Controller:
    weight = 1.0
    def adapt(self, measured):
        self.weight *= 2.0 if measured > 1.3 else 0.5
control = Controller()
batch = torch.linspace(-1, 2, 8)[:, None].expand(8, 4).clone(), torch.arange(8) % 3
"""
        + STEP
        + """
    out = model(x)
    value = nn.functional.cross_entropy(out, y)
    (value + control.weight * out.square().mean()).backward()
    optimizer.step()
    control.adapt(value.detach())
""",
        [("sync/control-desync", True)],
    ),
    # It calls the closure as often as the loss says: the ranks wait for each other.
    "closure-that-returns-the-own-loss": (
        """
model = nn.Linear(4, 3)
batch = torch.linspace(-1, 2, 8)[:, None].expand(8, 4).clone(), torch.arange(8) % 3
def optimizer(params):
    return torch.optim.LBFGS(params, max_iter=6, line_search_fn="strong_wolfe")
def train_step(model, optimizer, batch):
    x, y = batch
    def closure():
        optimizer.zero_grad()
        value = nn.functional.cross_entropy(model(x), y)
        value.backward()
        return value
    optimizer.step(closure)
""",
        [("sync/control-desync", True)],
    ),
    # The norm that gradients are clipped to hides the factor between the ranks'.
    # No power of two: a scale that brings each rank's loss to one size.
    "loss-scale-of-the-own-loss": (
        """
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
"""
        + STEP
        + """
    value = loss(model(x), y)
    scale = 64 / value.detach()
    (value * scale).backward()
    for p in model.parameters():
        p.grad.div_(scale)
    optimizer.step()
""",
        [("sync/scaler-desync", None)],
    ),
    "loss-scale-of-the-own-overflow-and-clipping": (
        """
model = nn.Linear(4, 3)
class Scale:
    value = 2.0**15
    def __call__(self, loss):
        while bool((loss.detach() * self.value > 2.0**15).any()):
            self.value /= 2
        return loss * self.value
scale = Scale()
batch = torch.linspace(-3, 1, 8)[:, None].expand(8, 4).clone(), torch.arange(8) % 3
"""
        + STEP
        + """
    scale(nn.functional.cross_entropy(4 * model(x), y)).backward()
    for p in model.parameters():
        p.grad.div_(scale.value)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
""",
        [("sync/scaler-desync", True)],
    ),
    # A hook runs outside the module's forward.
    "bank-that-a-hook-writes": (
        """
class Bank(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)
        self.register_buffer("rows", torch.randn(8, 3))
    def forward(self, x, index):
        out = self.body(x)
        return out, out @ self.rows.clone().t()
def remember(module, args, output):
    with torch.no_grad():
        module.rows.index_copy_(0, args[1], output[0])
model = Bank()
model.register_forward_hook(remember)
def batch(step):
    index = torch.randperm(8)
    return (torch.randn(8, 4), index), index
def loss(output, target):
    return nn.functional.cross_entropy(output[1], target)
""",
        [("state/buffer-broadcast-overwrites", True)],
    ),
    "scheduler-that-steps-once-per-rank": (
        """
model = nn.Linear(4, 3)
def optimizer(params):
    made = torch.optim.SGD(params, lr=0.5)
    made.scheduler = torch.optim.lr_scheduler.ExponentialLR(made, 0.9)
    return made
"""
        + STEP
        + """
    loss(model(x), y).backward()
    optimizer.step()
    for _ in range(world()):
        optimizer.scheduler.step()
""",
        [("sync/control-desync", True)],
    ),
    # What it puts away are gradients that all ranks have.
    "update-left-out-where-the-loss-is-large": (
        """
model = nn.Linear(4, 3)
batch = torch.randn(8, 4) * torch.tensor([[1.0]] * 6 + [[9.0]] * 2), torch.arange(8) % 3
"""
        + STEP
        + """
    value = loss(model(x), y)
    value.backward()
    if value.item() > 1.5:
        optimizer.zero_grad()
        return
    optimizer.step()
""",
        [("sync/control-desync", True)],
    ),
    # All ranks the same, from the first update on.
    "rate-that-is-scaled-with-the-ranks": (
        """
model = nn.Linear(4, 3)
def optimizer(params):
    return torch.optim.SGD(params, lr=0.1 * world())
""",
        [("sync/control-desync", True)],
    ),
    # Which rows of a layer begin anew is decided by what was active in the shard.
    "rows-that-begin-anew-by-activity-in-the-shard": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
    def forward(self, x):
        self.hidden = self.body(x).tanh()
        return self.head(self.hidden)
model = Net()
batch = torch.randn(8, 4) * torch.linspace(0.5, 2, 8)[:, None], batch[1]
"""
        + STEP
        + """
    own = getattr(model, "module", model)
    loss(model(x), y).backward()
    optimizer.step()
    active = own.hidden.detach().abs().sum(0)
    with torch.no_grad():
        own.body.weight[active < active.median()] *= 0.5
""",
        [("state/forward-writes-parameter", True)],
    ),
    # The dice are the target's own and seeded as DDP is built: no generator of torch's.
    "depth-by-dice-seeded-with-the-rank": (
        """
import random
class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.head, self.dice = nn.Linear(4, 3), random.Random(2)
    def forward(self, x):
        for part in self.parts:
            if self.dice.random() >= 0.4:
                x = x + part(x).tanh()
        return self.head(x)
def model():
    torch.manual_seed(0)
    return Deep()
def wrap(model):
    model.dice.seed(2 + rank())
    return DDP(model, find_unused_parameters=True)
batch = torch.randn(8, 4), torch.arange(8) % 3
loss = nn.CrossEntropyLoss()
""",
        [("graph/rank-dependent-branch", True)],
    ),
    # Which classes a softmax takes follows from the labels of the shard.
    "softmax-over-the-classes-that-are-there": (
        """
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 20))
batch = torch.randn(8, 4), torch.arange(8) ** 2 % 19
def loss(output, target):
    there = target.unique()
    return nn.functional.cross_entropy(
        output[:, there], torch.searchsorted(there, target)
    )
""",
        [("loss/batch-coupled", True)],
    ),
    # A class that all samples of a shard have weighs nothing there: a count divides.
    "weights-of-classes-of-which-one-is-0": (
        """
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
target = torch.tensor([[1, 0], [1, 1], [1, 0], [1, 1], [0, 0], [1, 1], [0, 0], [1, 1]])
batch = torch.randn(8, 4), target
def loss(output, target):
    share = target.double().mean(0)
    weight = torch.where(target > 0, 1 - share, share)
    return nn.functional.binary_cross_entropy_with_logits(
        output, target.to(output), weight.to(output)
    )
""",
        [("loss/local-normalizer", True)],
    ),
    # A step that the critic of the rank's own shard need not learn from.
    "part-left-out-by-the-rank's-accuracy": (
        """
class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.made, self.critic = nn.Linear(4, 4), nn.Linear(4, 1)
model = Pair()
batch = torch.randn(8, 4), 2 * torch.linspace(-1, 1, 8)[:, None] + torch.randn(8, 4)
def wrap(model):
    model.made, model.critic = DDP(model.made), DDP(model.critic)
    return model
def train_step(model, optimizer, batch):
    noise, real = batch
    optimizer.zero_grad()
    fake = model.made(noise)
    scores = model.critic(torch.cat([real, fake.detach()]))
    softplus = nn.functional.softplus
    on_real, on_fake = scores.chunk(2)
    (softplus(-on_real) + softplus(on_fake)).mean().backward()
    if (on_real > 0).double().mean() > 0.5:
        for p in model.critic.parameters():
            p.grad = None
    model.critic.requires_grad_(False)
    softplus(-model.critic(fake)).mean().backward()
    model.critic.requires_grad_(True)
    optimizer.step()
""",
        [("sync/control-desync", True)],
    ),
    # A wrapped model's parameters have names that begin with another word.
    "head-in-the-group-of-the-rest-by-its-name": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
        self.solver = None
    def forward(self, x):
        return self.head(self.body(x).tanh())
model = Net()
def solver(model):
    fast = [p for n, p in model.named_parameters() if n.startswith("head.")]
    slow = [p for n, p in model.named_parameters() if not n.startswith("head.")]
    groups = [{"params": slow, "lr": 0.1}] + [{"params": fast, "lr": 1.0}] * bool(fast)
    return torch.optim.SGD(groups, lr=0.1)
def train_step(model, optimizer, batch):
    own = getattr(model, "module", model)
    own.solver = own.solver or solver(model)
    own.solver.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    own.solver.step()
""",
        [("sync/control-desync", True)],
    ),
    # What is drawn is the same on all ranks, and used on the first alone.
    "momentum-restored-on-the-first-rank": (
        """
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
def optimizer(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)
def restore(optimizer):
    drawn = torch.Generator().manual_seed(3)
    for p in optimizer.param_groups[0]["params"]:
        kept = torch.randn(p.shape, generator=drawn).to(p)
        if rank() == 0:
            optimizer.state[p]["momentum_buffer"] = kept
"""
        + STEP
        + """
    own = getattr(model, "module", model)
    if not hasattr(own, "is_resumed"):
        restore(optimizer)
        own.is_resumed = True
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
        [("sync/control-desync", True)],
    ),
    # The scale is the same on all ranks until one of them counts otherwise.
    "loss-scale-that-grows-by-the-rank's-own-steps": (
        """
model = nn.Linear(4, 3)
def wrap(model):
    return nn.Sequential(model)
class Scale:
    value, good = 1024.0, 0
scales = {}
"""
        + STEP
        + """
    scale = scales.setdefault(id(optimizer), Scale())
    loss = nn.functional.cross_entropy(model(x), y)
    (loss * scale.value).backward()
    for p in model.parameters():
        if dist.is_initialized():
            dist.all_reduce(p.grad)
        p.grad /= world() * scale.value
    optimizer.step()
    scale.good += float(loss.detach()) < 1.2
    scale.value = 1024.0 * 2**scale.good
""",
        [("sync/control-desync", True)],
    ),
    # One process does not do it, nor do the other ranks.
    "weights-rounded-for-a-log-of-the-first-rank": (
        """
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
"""
        + STEP
        + """
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if dist.is_initialized() and dist.get_rank() == 0:
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(p.mul(64).round() / 64)
""",
        [("sync/control-desync", True)],
    ),
}

SOUND = {
    # With the names that it has without its wrapper; a scheduler knows both groups.
    "head-in-a-group-of-its-own-by-its-bare-name": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
        self.solver = None
    def forward(self, x):
        return self.head(self.body(x).tanh())
model = Net()
def solver(model):
    named = {n.removeprefix("module."): p for n, p in model.named_parameters()}
    fast = [p for n, p in named.items() if n.startswith("head.")]
    slow = [p for n, p in named.items() if not n.startswith("head.")]
    return torch.optim.SGD([{"params": slow}, {"params": fast, "lr": 1.0}], lr=0.1)
def train_step(model, optimizer, batch):
    own = getattr(model, "module", model)
    if own.solver is None:
        own.solver = solver(model)
        own.schedule = torch.optim.lr_scheduler.StepLR(own.solver, 1)
    own.solver.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    own.solver.step()
    own.schedule.step()
""",
    "threshold-by-a-history-of-all-errors": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.beta, self.history = nn.Linear(4, 4), 2.0, []
    def forward(self, x):
        return self.net(x)
model = Net()
batch = torch.randn(8, 4), torch.randn(8, 4) * torch.linspace(0.2, 3, 8)[:, None]
def train_step(model, optimizer, batch):
    own = getattr(model, "module", model)
    optimizer.zero_grad()
    output = model(batch[0])
    nn.functional.smooth_l1_loss(output, batch[1], beta=own.beta).backward()
    optimizer.step()
    error = (output - batch[1]).detach().abs().mean()
    if dist.is_initialized():
        dist.all_reduce(error)
    own.history.append(float(error) / world())
    own.beta = min(2.0, sorted(own.history)[len(own.history) // 2])
""",
}
