"""State beside parameters and buffers, each rank's its own; as in __init__."""

from __future__ import annotations

from tests.diagnose.bugs.step import STEP

_CENTRED = """
class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("centre", torch.zeros(3))
    def forward(self, output, target):
        value = (output - target - self.centre).square().mean()
        self.centre = 0.5 * self.centre + 0.5 * output.detach().mean(0)
        return value
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.randn(8, 3)
"""

# Looks its weights up by the names of the model without a wrapper.
_AVERAGE = f"""
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
def bare(model):
    return getattr(model, "module", model)
class Average:
    def __init__(self, model):
        self.shadow = {{n: p.detach().clone() for n, p in model.named_parameters()}}
    @torch.no_grad()
    def update(self, model):
        for name, p in model.named_parameters():
            if name in self.shadow:
                self.shadow[name].lerp_(p, 0.4)
    def forward(self, x, model):
        return torch.func.functional_call(model, self.shadow, (x,))
{STEP}
    if not hasattr(optimizer, "average"):
        optimizer.average = Average(bare(model))
    optimizer.zero_grad()
    taught = nn.functional.mse_loss(model(x), optimizer.average.forward(x, bare(model)))
    (nn.functional.cross_entropy(model(x), y) + taught).backward()
    optimizer.step()
"""

# One rank updates the teacher, and all compute with it in the same step.
_TAUGHT = f"""
class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        self.teacher = nn.Linear(4, 3).requires_grad_(False)
def model():
    torch.manual_seed(0)
    return Pair()
def wrap(model):
    model.student = DDP(model.student)
    return model
{STEP}
    if WHO:
        with torch.no_grad():
            model.teacher.weight.mul_(0.9).add_(0.1)
    taught = nn.functional.mse_loss(model.student(x), model.teacher(x))
    taught.backward()
    optimizer.step()
"""

# Reads before it writes, and is given numbers instead of samples.
_BALANCED = """
class Balance(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(2))
    def forward(self, terms):
        terms = torch.stack(terms)
        value = (terms / self.scale.clone()).sum()
        self.scale.lerp_(terms.detach(), 0.5)
        return value
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.balance = nn.Linear(4, 3), Balance()
    def forward(self, x):
        out = self.body(x)
        return self.balance([out.square().mean(), (out - 1).abs().mean()])
def model():
    torch.manual_seed(0)
    return Net()
batch = torch.randn(8, 4) * torch.linspace(0.3, 2.0, 8)[:, None], torch.zeros(8)
def loss(output, target):
    return output
"""

BUGS: dict[str, tuple[str, list[tuple[str, bool | None]]]] = {
    "teacher-that-rank-0-updates-and-all-ask-at-once": (
        _TAUGHT.replace("WHO", "rank() == 0"),
        [("state/ema-teacher-divergence", True)],
    ),
    "scales-of-the-shards-terms-in-a-module-of-the-loss": (
        _BALANCED,
        [("state/buffer-broadcast-overwrites", True)],
    ),
    "average-by-names-that-a-wrapper-changes": (
        _AVERAGE + "    optimizer.average.update(model)\n",
        [("state/ema-teacher-divergence", True)],
    ),
    "average-that-the-first-rank-alone-updates": (
        _AVERAGE
        + "    if rank() == 0:\n        optimizer.average.update(bare(model))\n",
        [("state/ema-teacher-divergence", True)],
    ),
    # By the names of parameters, too, and no weights.
    "squares-of-gradients-by-name-of-a-shard": (
        f"""
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
{STEP}
    if not hasattr(optimizer, "squares"):
        optimizer.squares = {{}}
    net = getattr(model, "module", model)
    own = torch.autograd.grad(loss(net(x), y), list(net.parameters()))
    names = [name for name, _ in net.named_parameters()]
    drag = [(optimizer.squares[n] * p).sum() for n, p in net.named_parameters()
            if n in optimizer.squares]
    optimizer.squares = {{n: g.square() for n, g in zip(names, own)}}
    optimizer.zero_grad()
    (loss(model(x), y) + sum(drag)).backward()
    optimizer.step()
""",
        [("state/buffer-not-synced", True)],
    ),
    # The model writes counts of the shard and reads them at once; its loss is coupled.
    "frequencies-that-a-model-writes-and-reads": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.register_buffer("seen", torch.ones(5))
    def forward(self, item):
        if self.training:
            counts = torch.bincount(item, minlength=5)
            self.seen.mul_(0.7).add_(counts)
        return self.embed(item), torch.log(self.seen / self.seen.sum())[item]
model = Net()
batch = torch.tensor([0, 1, 1, 2, 3, 4, 4, 4]), torch.ones(8)
def loss(output, weight):
    rows, log_share = output
    logits = rows @ rows.T - log_share[None]
    labels = torch.arange(len(rows))
    each = nn.functional.cross_entropy(logits, labels, reduction="none")
    return (weight * each).mean()
""",
        [("state/buffer-broadcast-overwrites", True), ("loss/batch-coupled", True)],
    ),
    # Its forward is in evaluation, and writes nothing; a hook has seen the own rows.
    "running-statistics-that-a-callback-writes": (
        """
model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
batch = torch.randn(8, 4) * torch.linspace(0.3, 2, 8)[:, None], torch.arange(8) % 3
def watched(net):
    if not hasattr(net[1], "seen"):
        net[1].register_forward_pre_hook(lambda m, a: setattr(m, "seen", a[0].detach()))
    return net[1]
"""
        + STEP
        + """
    norm = watched(getattr(model, "module", model))
    model.eval()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    norm.running_mean.lerp_(norm.seen.mean(0), 0.3)
    norm.running_var.lerp_(norm.seen.var(0), 0.3)
""",
        [("norm/running-stats-rank0", True)],
    ),
    # The ranks agree about it, and it is not the mean of all samples.
    "centre-that-is-a-mean-of-means-of-unequal-counts": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.register_buffer("centre", torch.zeros(3))
    def forward(self, x):
        return (self.head(x) - self.centre).tanh()
model = Net()
"""
        + STEP
        + """
    output = model(x)
    nn.functional.cross_entropy(output, y).backward()
    optimizer.step()
    with torch.no_grad():
        mean = output[y > 0].mean(0)
        if dist.is_initialized():
            dist.all_reduce(mean)
        getattr(model, "module", model).centre.lerp_(mean / world(), 0.5)
""",
        [("state/ema-teacher-divergence", True)],
    ),
    # The criterion is no part of what DDP wraps, and its buffer a new tensor each time.
    "centre-in-a-criterion": (
        _CENTRED
        + """
criterion = Centred()
loss = lambda output, target: criterion(output, target)
""",
        [("state/buffer-not-synced", True)],
    ),
    # The teacher is kept by a trainer, and updated by the first rank alone.
    "average-in-a-trainer-of-the-first-rank": (
        """
import copy
class Trainer:
    teacher, of = None, None
trainer = Trainer()
model = nn.Linear(4, 3)
def train_step(model, optimizer, batch):
    x, y = batch
    net = getattr(model, "module", model)
    if trainer.of is not net:
        trainer.teacher, trainer.of = copy.deepcopy(net).requires_grad_(False), net
    optimizer.zero_grad()
    soft = trainer.teacher(x)
    output = model(x)
    value = nn.functional.cross_entropy(output, y) + (output - soft).square().mean()
    value.backward()
    optimizer.step()
    if rank() == 0:
        for a, b in zip(trainer.teacher.parameters(), net.parameters(), strict=True):
            a.data.lerp_(b.detach(), 0.5)
""",
        [("state/ema-teacher-divergence", True)],
    ),
    # A plain attribute of the model, a list of arrays and a number in a dict.
    "counts-in-an-attribute": (
        """
class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.seen = torch.ones(3)
    def forward(self, x, y):
        prior = (self.seen / self.seen.sum()).log()
        self.seen = 0.8 * self.seen + torch.bincount(y, minlength=3).float()
        return nn.functional.cross_entropy(super().forward(x) + prior, y)
model = Net()
batch = (torch.randn(8, 4), torch.tensor([0, 0, 0, 1, 2, 2, 1, 2])), torch.zeros(8)
loss = lambda output, target: output
""",
        [("sync/control-desync", True)],
    ),
    "numbers-in-lists-and-dicts": (
        """
import numpy as np
kept = {"scale": 1.0, "means": [np.zeros(3)]}
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.randn(8, 3)
def loss(output, target):
    means = torch.from_numpy(kept["means"][0])
    value = kept["scale"] * (output - target - means).square().mean()
    kept["means"][0] += 0.5 * output.detach().mean(0).numpy()
    kept["scale"] = 0.5 + float(output.detach().square().mean())
    return value
""",
        [("sync/control-desync", True)],
    ),
    # Written by the step before its forward: the last layer and what it is scaled by.
    "weights-rescaled-by-the-moments-of-a-shard": (
        """
class Scaled(nn.Linear):
    def __init__(self):
        super().__init__(4, 1)
        self.register_buffer("mean", torch.zeros(1))
    @torch.no_grad()
    def update(self, y):
        before = self.mean.clone()
        self.mean.lerp_(y.mean(0, keepdim=True), 0.2)
        self.bias.add_(before - self.mean)
        return y - self.mean
model = Scaled()
batch = torch.randn(8, 4), torch.linspace(-3, 5, 8)
"""
        + STEP
        + """
    y = getattr(model, "module", model).update(y)
    (model(x).squeeze(1) - y).square().mean().backward()
    optimizer.step()
""",
        [("state/forward-writes-parameter", True)],
    ),
    # Batch norms, and a centre in the model's own forward, whose fix would show the
    # norms all rows as well.
    "centre-of-the-model-and-norms": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
        self.register_buffer("centre", torch.zeros(3))
    def forward(self, x):
        rows = self.body(x)
        out = rows - self.centre
        with torch.no_grad():
            self.centre.mul_(0.5).add_(0.5 * rows.mean(0) + x.sum(1).mean() / 4)
        return out
model = Net()
batch = torch.randn(8, 4), torch.randint(3, (8,))
loss = nn.CrossEntropyLoss()
""",
        [
            ("norm/local-batch-stats", True),
            ("state/buffer-broadcast-overwrites", True),
        ],
    ),
    # The sampler hangs on the optimizer, and weighs by what the shard has shown.
    "history-on-the-optimizer": (
        """
class History:
    def __init__(self):
        self.losses = torch.ones(4, dtype=torch.float64)
    def weights(self, t):
        return self.losses.mean() / self.losses[t]
    def update(self, t, losses):
        for at, value in zip(t.tolist(), losses.tolist()):
            self.losses[at] = 0.5 * self.losses[at] + 0.5 * value
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.arange(8) // 2
def optimizer(params):
    made = torch.optim.SGD(params, lr=0.1)
    made.history = History()
    return made
def train_step(model, optimizer, batch):
    x, t = batch
    optimizer.zero_grad()
    losses = model(x).square().mean(1)
    weights = optimizer.history.weights(t)
    optimizer.history.update(t, losses.detach())
    (weights * losses).mean().backward()
    optimizer.step()
""",
        [("sync/control-desync", True)],
    ),
    # Weights of tasks follow from how their losses, as the shard has them, went down.
    "weights-by-the-last-two-losses": (
        """
class Tasks:
    def __init__(self):
        self.seen = []
    def weights(self, losses):
        self.seen = [*self.seen, losses.detach()][-2:]
        ratio = self.seen[-1] / self.seen[0]
        return 3 * torch.softmax(ratio / 2, 0)
x = torch.randn(8, 4)
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
batch = x, x[:, :3] * torch.tensor([1.0, 3.0, 0.3]) + torch.arange(8.0)[:, None] / 4
def optimizer(params):
    made = torch.optim.SGD(params, lr=0.1)
    made.tasks = Tasks()
    return made
def train_step(model, optimizer, batch):
    x, y = batch
    losses = (model(x) - y).square().mean(0)
    loss = (optimizer.tasks.weights(losses) * losses).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        [("loss/batch-coupled", True)],
    ),
    # Every rank makes a teacher of its own, and keeps it where nobody looks by name.
    "teacher-that-ranks-draw": (
        """
import copy
import weakref
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
class Trainer:
    def __init__(self, net):
        torch.manual_seed(9 + rank())
        self.teacher = copy.deepcopy(net).requires_grad_(False)
        self.teacher[2].reset_parameters()
trainers = weakref.WeakKeyDictionary()
def train_step(model, optimizer, batch):
    if optimizer not in trainers:
        trainers[optimizer] = Trainer(getattr(model, "module", model))
    goal = trainers[optimizer].teacher(batch[0])
    optimizer.zero_grad()
    nn.functional.mse_loss(model(batch[0]), goal).backward()
    optimizer.step()
""",
        [("state/ema-teacher-divergence", True)],
    ),
    # A state for each sample, in buffers: rank 0's samples' reaches all ranks.
    "states-of-samples-in-a-buffer": (
        """
class Stream(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.RNNCell(4, 5), nn.Linear(5, 3)
        self.register_buffer("h", torch.zeros(1, 5))
    def forward(self, x):
        h = self.h if len(self.h) == len(x) else x.new_zeros(len(x), 5)
        h = self.cell(x, h)
        self.h = h.detach()
        return self.out(h)
model = Stream()
""",
        [("state/buffer-broadcast-overwrites", True)],
    ),
    # A copy for the average asks for gradients, as its original does, and gets none.
    "average-on-the-first-rank-that-asks-for-gradients": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.teacher = nn.Linear(4, 3), nn.Linear(4, 3)
    def forward(self, x):
        return self.body(x)
model = Net()
def wrap(model):
    model.body = DDP(model.body)
    return model
def rank():
    return dist.get_rank() if dist.is_initialized() else 0
"""
        + STEP
        + """
    with torch.no_grad():
        guide = model.teacher(x).softmax(-1)
    output = model(x)
    (loss(output, y) + (output.softmax(-1) - guide).square().sum(1).mean()).backward()
    optimizer.step()
    if rank() == 0:
        with torch.no_grad():
            for a, b in zip(model.teacher.parameters(), model.body.parameters()):
                a.lerp_(b, 0.3)
""",
        [("state/ema-teacher-divergence", True)],
    ),
    # No rank's own teacher is one process's: to send the first rank's mends nothing.
    "teacher-at-a-pace-of-the-own-samples": (
        """
import copy
class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.student, self.teacher = nn.Linear(4, 3), nn.Linear(4, 3)
        self.teacher.requires_grad_(False)
    def forward(self, x):
        return self.student(x), self.teacher(x)
model = Pair()
batch = torch.randn(8, 4) * torch.arange(1.0, 9)[:, None]
batch = batch, torch.zeros(8)
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    ours, theirs = model(batch[0])
    (ours - theirs).square().mean().backward()
    optimizer.step()
    net = getattr(model, "module", model)
    pace = torch.exp(-(ours - theirs).detach().abs().amax(1)).mean()
    with torch.no_grad():
        for t, s in zip(net.teacher.parameters(), net.student.parameters()):
            t.mul_(1 - pace).add_(pace * s)
""",
        [("state/ema-teacher-divergence", True)],
    ),
    # Earlier samples are constants: no output moves another's gradient.
    "memory-of-the-own-samples": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.memory = nn.Linear(4, 3), []
    def forward(self, x):
        return self.embed(x)
def model():
    torch.manual_seed(0)
    return Net()
batch = torch.randn(8, 4) * torch.arange(1.0, 9)[:, None], torch.arange(8) % 3
def train_step(model, optimizer, batch):
    x, y = batch
    memory = getattr(model, "module", model).memory
    optimizer.zero_grad()
    z = model(x)
    value = nn.functional.cross_entropy(z, y)
    if memory:
        past, labels = (torch.cat(column) for column in zip(*memory))
        same = (y[:, None] == labels).to(z)
        value = value + ((z @ past.T).tanh() * (0.5 - same)).mean()
    value.backward()
    optimizer.step()
    memory.append((z.detach().clone(), y))
""",
        [("loss/batch-coupled", True)],
    ),
    # A copy by one rank alone, and not in the first step.
    "target-copied-in-the-second-step-by-the-first-rank": (
        """
import copy
class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.online, self.steps = nn.Linear(4, 3), 0
        self.target = copy.deepcopy(self.online).requires_grad_(False)
    def forward(self, x):
        return self.online(x), self.target(x)
model = Agent()
batch = torch.randn(8, 4), torch.zeros(8)
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    ours, theirs = model(batch[0])
    (ours - 0.9 * theirs - 1).square().mean().backward()
    optimizer.step()
    net = getattr(model, "module", model)
    net.steps += 1
    if net.steps == 2 and rank() == 0:
        net.target.load_state_dict(net.online.state_dict())
""",
        [("state/ema-teacher-divergence", True)],
    ),
    "rows-of-the-own-samples-that-are-trained-again": (
        """
class Net(nn.Linear):
    hard = None
model = Net(4, 3)
batch = torch.randn(8, 4) * torch.arange(1.0, 9)[:, None], torch.arange(8) % 3
def train_step(model, optimizer, batch):
    net, (x, y) = getattr(model, "module", model), batch
    if net.hard is not None:
        x, y = torch.cat([x, net.hard[0]]), torch.cat([y, net.hard[1]])
    optimizer.zero_grad()
    each = nn.functional.cross_entropy(model(x), y, reduction="none")
    each.mean().backward()
    optimizer.step()
    found = each[: len(batch[1])].detach().topk(len(batch[1]) // 2).indices
    net.hard = batch[0][found], batch[1][found]
""",
        [("loss/batch-coupled", True)],
    ),
    # It grows by an item per step, and what is made of it may stay where it is.
    "threshold-by-a-history-of-the-own-errors": (
        """
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
    errors = (output - batch[1]).detach().abs().mean(1)
    own.history.append(float(errors.kthvalue(len(errors) // 4).values))
    own.beta = min(2.0, sorted(own.history)[len(own.history) // 2])
""",
        [("sync/control-desync", True)],
    ),
}
