"""Targets that look wrong and are right: name -> source. No rule may fire on them.

Some have a twin that one change breaks: there the rule does fire.
"""

from __future__ import annotations

HEAD = """
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dnn
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

def world():
    return dist.get_world_size() if dist.is_initialized() else 1

def rank():
    return dist.get_rank() if dist.is_initialized() else 0

torch.manual_seed(0)
batch = torch.randn(8, 4), torch.arange(8) % 3
loss = nn.CrossEntropyLoss()
"""

SEQUENTIAL = """
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
"""

TIED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)
        self.b.weight = self.a.weight
    def forward(self, x):
        return self.head(self.b(self.a(x).tanh()))
model = Net()
"""

TWO_OUTPUTS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.aux = nn.Linear(4, 3), nn.Linear(4, 3)
    def forward(self, x):
        return self.head(x), self.aux(x)
model = Net()
def loss(output, target):
    return nn.functional.cross_entropy(output[0], target)
"""

CONTROLS = {
    # What a spiking network leaves after its last call: other samples on every rank.
    "membranes-of-the-last-micro-batch": """
class Spiking(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.RNNCell(4, 5), nn.Linear(5, 3)
        self.register_buffer("membrane", torch.zeros(0))
    def forward(self, x):
        self.membrane = torch.zeros(len(x), 5, dtype=x.dtype)
        for _ in range(2):
            self.membrane = self.cell(x, self.membrane)
        return self.head(self.membrane)
model = Spiking()
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    for x, y in zip(*(t.chunk(2) for t in batch)):
        (loss(model(x), y) / 2).backward()
    optimizer.step()
""",
    # As timm's: torch's conversion would lose the activation, and DDP refuses the CPU.
    "synchronised-by-a-conversion-of-its-own": """
class NormAct(nn.BatchNorm1d):
    def forward(self, x):
        return super().forward(x).relu()
class SyncNormAct(nn.SyncBatchNorm):
    def forward(self, x):
        return super().forward(x).relu()
model = nn.Sequential(nn.Linear(4, 8), NormAct(8), nn.Linear(8, 3))
def wrap(model):
    norm = SyncNormAct(8)
    norm.load_state_dict(model[1].state_dict())
    model[1] = norm
    return DDP(model)
""",
    # The second norm's mean is zero but for rounding: its rows are a norm's, weighted.
    "synchronised-norm-behind-another": """
model = nn.Sequential(
    nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3, bias=False), nn.BatchNorm1d(3)
)
def wrap(model):
    return DDP(nn.SyncBatchNorm.convert_sync_batchnorm(model))
""",
    "rank-dependent-init-before-wrapping": """
def model():
    torch.manual_seed(rank())
    return nn.Linear(4, 3)
""",
    "accumulation-without-no-sync": SEQUENTIAL
    + """
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    for x, y in zip(batch[0].chunk(2), batch[1].chunk(2)):
        (loss(model(x), y) / 2).backward()
    optimizer.step()
""",
    "averaging-twice": SEQUENTIAL
    + """
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss(model(batch[0]), batch[1]).backward()
    if dist.is_initialized():
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world()
    optimizer.step()
""",
    "tied-weights": TIED,
    "tied-weights-with-bucket-view": TIED
    + """
def wrap(model):
    return DDP(model, gradient_as_bucket_view=True)
""",
    "ddp-inside-ddp": SEQUENTIAL
    + """
def wrap(model):
    model[0] = DDP(model[0])
    return DDP(model)
""",
    "sparse-embedding": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(5, 4, sparse=True), nn.Linear(4, 3)
    def forward(self, ids):
        return self.head(self.words(ids).mean(1))
model, batch = Net(), (torch.randint(0, 5, (8, 6)), torch.arange(8) % 3)
""",
    "frozen-parameter-alone-in-its-dtype": """
class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.scale = nn.Parameter(torch.ones(3, dtype=torch.bfloat16), False)
    def forward(self, x):
        return super().forward(x) * self.scale.to(x.dtype)
model = Net()
""",
    "rank-dependent-branch-with-find-unused": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.even, self.odd = nn.Linear(4, 3), nn.Linear(4, 3)
    def forward(self, x):
        if not dist.is_initialized():
            parts = zip((self.even, self.odd) * 2, x.chunk(2))
            return torch.cat([part(rows) for part, rows in parts])
        return (self.odd if rank() % 2 else self.even)(x)
model = Net()
def wrap(model):
    return DDP(model, find_unused_parameters=True)
""",
    "dataclass-output": """
import dataclasses
@dataclasses.dataclass
class Output:
    logits: torch.Tensor
class Net(nn.Linear):
    def forward(self, x):
        return Output(super().forward(x))
model = Net(4, 3)
def loss(output, target):
    return nn.functional.cross_entropy(output.logits, target)
""",
    "unused-output-with-find-unused": TWO_OUTPUTS
    + """
def wrap(model):
    return DDP(model, find_unused_parameters=True)
""",
    "buffer-reassigned-in-forward": """
class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.register_buffer("calls", torch.zeros(()))
    def forward(self, x):
        self.calls = self.calls + 1
        return super().forward(x)
model = Net()
""",
    "buffer-registered-after-wrapping": """
model = nn.Linear(4, 3)
def wrap(model):
    wrapped = DDP(model)
    model.register_buffer("late", torch.ones(2))
    return wrapped
""",
    "two-forwards": SEQUENTIAL
    + """
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    (loss(model(batch[0]), batch[1]) + loss(model(-batch[0]), batch[1])).backward()
    optimizer.step()
""",
    "complex-parameter": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64))
    def forward(self, x):
        return (x.to(self.weight.dtype) @ self.weight).abs()
model = Net()
""",
    "reduce-op-avg": """
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.tensor([0, -100, 2, -100, 1, 2, 0, -100])
def loss(output, target):
    count = (target != -100).sum().to(output.dtype)
    if dist.is_initialized():
        dist.all_reduce(count, op=dist.ReduceOp.AVG)
    return nn.functional.cross_entropy(output, target, reduction="sum") / count
""",
    "weight-standardisation-by-batch-norm": """
class Net(nn.Linear):
    def forward(self, x):
        weight = nn.functional.batch_norm(self.weight.T, None, None, training=True).T
        return nn.functional.linear(x, weight, self.bias)
model = Net(4, 3)
""",
    "class-weights-with-soft-targets": """
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.rand(8, 3).softmax(1)
def loss(output, target):
    weight = torch.tensor([1.0, 2.0, 5.0]).to(output)
    return nn.functional.cross_entropy(output, target, weight=weight)
""",
    "ignored-targets-in-equal-numbers": """
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.tensor([0, -100, 2, 1, 1, 2, 0, -100])
""",
    "all-reduce-with-gradient-of-a-share": """
model = nn.Linear(4, 3)
def loss(output, target):
    share = nn.functional.cross_entropy(output, target, reduction="sum") / 8
    return dnn.all_reduce(share) if dist.is_initialized() else share
""",
    "mean-times-batch-times-world": """
model = nn.Linear(4, 3)
def loss(output, target):
    mean = nn.functional.cross_entropy(output, target)
    return mean * len(target) * world() / 8
""",
    "count-reduced-without-gradient": """
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.tensor([0, -100, 2, -100, 1, 2, 0, -100])
def loss(output, target):
    count = (target != -100).sum()
    if dist.is_initialized():
        dist.all_reduce(count)
    total = nn.functional.cross_entropy(output, target, reduction="sum")
    return world() * total / count
""",
    "optimizer-built-before-wrapping": SEQUENTIAL
    + """
def wrap(model):
    early = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = DDP(model)
    wrapped.early = early
    return wrapped
def train_step(model, optimizer, batch):
    optimizer = getattr(model, "early", optimizer)
    optimizer.zero_grad()
    loss(model(batch[0]), batch[1]).backward()
    optimizer.step()
""",
    "two-wrappers-that-share-a-parameter": TIED
    + """
def wrap(model):
    model.a, model.b = DDP(model.a), DDP(model.b)
    model.head = DDP(model.head)
    return model
""",
    "wrapper-of-ones-own-around-a-model-with-buffers": """
class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("positions", torch.linspace(0, 1, 4))
    def forward(self, x):
        self.mean = self.mean + 1
        return super().forward(x - self.mean + self.positions)
class Wrapper(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = DDP(net)
    def forward(self, x):
        return self.net(x)
model, wrap = Net(), Wrapper
""",
    "two-forwards-with-frozen-batch-norm": """
class Frozen(nn.BatchNorm1d):
    def train(self, mode=True):
        return super().train(False)
model = nn.Sequential(nn.Linear(4, 4), Frozen(4).train(), nn.Linear(4, 3))
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    (loss(model(batch[0]), batch[1]) + loss(model(-batch[0]), batch[1])).backward()
    optimizer.step()
""",
    "compiled-around-ddp": SEQUENTIAL
    + """
def wrap(model):
    return torch.compile(DDP(model), backend="eager")
""",
    "ddp-around-compiled": SEQUENTIAL
    + """
def wrap(model):
    return DDP(torch.compile(model, backend="eager"))
""",
    "process-group-of-its-own": SEQUENTIAL
    + """
class Group(dist.ProcessGroup):
    broadcast = lambda self, *args: dist.group.WORLD.broadcast(*args)
    allgather = lambda self, *args: dist.group.WORLD.allgather(*args)
    allreduce = lambda self, *args: dist.group.WORLD.allreduce(*args)
def wrap(model):
    return DDP(model, process_group=Group(rank(), world()))
""",
    "instance-norm": """
model = nn.Sequential(
    nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, affine=True), nn.Flatten(),
    nn.Linear(4, 3),
)
""",
    "ghost-batch-norm-whose-ghosts-are-the-shards": """
class Ghost(nn.BatchNorm1d):
    def forward(self, x):
        return torch.cat([super(Ghost, self).forward(part) for part in x.split(4)])
norm = Ghost(4, track_running_stats=False)
model = nn.Sequential(nn.Linear(4, 4), norm, nn.Linear(4, 3))
""",
    "loss-inside-forward": """
class Net(nn.Linear):
    def forward(self, x, labels):
        logits = super().forward(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}
model = Net(4, 3)
batch = {"x": batch[0], "labels": batch[1]}
del loss
""",
    "float32-inside-forward": """
class Net(nn.Linear):
    def forward(self, x):
        return super().forward(x).float().tanh()
model = Net(4, 3)
""",
    "refuses-float64": """
class Net(nn.Linear):
    def forward(self, x):
        assert x.dtype == torch.float32
        return super().forward(x)
model = Net(4, 3)
""",
    "unused-parameter-without-a-wrap-of-its-own": """
class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.pooler = nn.Linear(3, 3)
model = Net()
""",
    "lazy-module-after-a-first-forward": """
def model():
    torch.manual_seed(0)
    made = nn.LazyLinear(3)
    made(batch[0])
    return made
""",
    "distribution-output": """
class Net(nn.Linear):
    def forward(self, x):
        return torch.distributions.Categorical(logits=super().forward(x))
model = Net(4, 3)
def loss(output, target):
    return -output.log_prob(target).mean()
""",
    "time-first-output": """
class Net(nn.GRU):
    def forward(self, x):
        return super().forward(x.view(-1, 2, 2).transpose(0, 1))[0]
model = Net(2, 3)
def loss(output, target):
    return nn.functional.cross_entropy(output[-1], target)
""",
    "samples-and-times-in-one-dimension": """
class Net(nn.Linear):
    def forward(self, x):
        return super().forward(x.view(-1, 2))
model = Net(2, 3)
def loss(output, target):
    return nn.functional.cross_entropy(output, target.repeat_interleave(2))
""",
    "scalar-beside-the-output": """
class Net(nn.Linear):
    def forward(self, x):
        return super().forward(x), self.weight.square().mean()
model = Net(4, 3)
def loss(output, target):
    return nn.functional.cross_entropy(output[0], target) + output[1]
""",
    "square-matrix-of-which-the-diagonal-counts": """
class Net(nn.Linear):
    def forward(self, x):
        return super().forward(x) @ x.T
model = Net(4, 4)
def loss(output, _):
    return output.diagonal().square().mean()
""",
    "gradient-that-is-zero-under-adam": """
model = nn.Sequential(
    nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 1), nn.InstanceNorm1d(2), nn.Flatten(),
    nn.Linear(8, 3),
)
def optimizer(params):
    return torch.optim.Adam(params, lr=0.01)
""",
    "counter-outside-the-state-dict": """
class Net(nn.Linear):
    calls = 0
    def forward(self, x):
        self.calls += 1
        return super().forward(x) / self.calls
model = Net(4, 3)
""",
    "schedule-in-a-global": """
model, steps = nn.Linear(4, 3), []
def train_step(model, optimizer, batch):
    steps.append(0.1 / (1 + len(steps)))
    optimizer.param_groups[0]["lr"] = steps[-1]
    optimizer.zero_grad()
    loss(model(batch[0]), batch[1]).backward()
    optimizer.step()
""",
    "collective-in-a-group-of-one-rank": """
model = nn.Linear(4, 3)
def loss(output, target):
    value = nn.functional.cross_entropy(output, target)
    if dist.is_initialized():
        group = dist.new_group([0])
        if dist.get_rank() == 0:
            dist.all_reduce(value.detach().clone(), group=group)
    return value
""",
    "gathered-with-gradient-and-labels-offset": """
class Pair(nn.ModuleDict):
    def forward(self, x):
        return self["a"](x), self["b"](x)
model = Pair({"a": nn.Linear(4, 3), "b": nn.Linear(4, 3)})
def loss(output, _):
    a, b = output
    keys = torch.cat(dnn.all_gather(b)) if dist.is_initialized() else b
    labels = torch.arange(len(a)) + rank() * len(a)
    return nn.functional.cross_entropy(a @ keys.T, labels)
""",
    "comm-hook-that-averages": SEQUENTIAL
    + """
def average(_, bucket):
    buffer = bucket.buffer().div_(world())
    return dist.all_reduce(buffer, async_op=True).get_future().then(
        lambda done: done.value()[0]
    )
def wrap(model):
    wrapped = DDP(model)
    wrapped.register_comm_hook(None, average)
    return wrapped
""",
    "no-sync-on-all-but-the-last": SEQUENTIAL
    + """
import contextlib
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(zip(batch[0].chunk(2), batch[1].chunk(2))):
        held = i == 0 and isinstance(model, DDP)
        with model.no_sync() if held else contextlib.nullcontext():
            (loss(model(x), y) / 2).backward()
    optimizer.step()
""",
    "clipping-after-the-reduction": SEQUENTIAL
    + """
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss(model(batch[0]), batch[1]).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()
""",
}

# (control, what is changed in it, into what, the finding that this makes).
BROKEN_TWINS = (
    (
        "averaging-twice",
        "            p.grad /= world()\n",
        "",
        "sync/comm-hook-semantics",
    ),
    (
        "count-reduced-without-gradient",
        "world() * total",
        "total",
        "loss/missing-world-scale",
    ),
    (
        "ignored-targets-in-equal-numbers",
        "1, 1, 2, 0, -100",
        "1, 1, 2, 0, 1",
        "loss/local-normalizer",
    ),
    (
        "class-weights-with-soft-targets",
        "target, weight",
        "target.argmin(1), weight",
        "loss/local-normalizer",
    ),
    (
        "mean-times-batch-times-world",
        "* world() / 8",
        "/ 8",
        "loss/missing-world-scale",
    ),
    (
        "all-reduce-with-gradient-of-a-share",
        "dnn.all_reduce(share)",
        "dist.all_reduce(share) or share",
        "collective/no-autograd",
    ),
    (
        "gathered-with-gradient-and-labels-offset",
        " + rank() * len(a)",
        "",
        "collective/layout",
    ),
    (
        "ghost-batch-norm-whose-ghosts-are-the-shards",
        "split(4)",
        "split(8)",
        "norm/local-batch-stats",
    ),
    (
        "dataclass-output",
        "model = Net",
        "wrap, model = lambda net: DDP(net, static_graph=True), Net",
        "graph/opaque-output",
    ),
    (
        "unused-output-with-find-unused",
        ", find_unused_parameters=True",
        "",
        "graph/output-unused",
    ),
    (
        "rank-dependent-branch-with-find-unused",
        ", find_unused_parameters=True",
        "",
        "graph/rank-dependent-branch",
    ),
    (
        "two-wrappers-that-share-a-parameter",
        "    model.head = DDP(model.head)\n",
        "",
        "ddp/wrapper-missing",
    ),
    ("comm-hook-that-averages", ".div_(world())", "", "sync/comm-hook-semantics"),
    ("no-sync-on-all-but-the-last", "i == 0", "i == 1", "sync/no-sync-off-by-one"),
    (
        "clipping-after-the-reduction",
        "    nn.utils.clip_grad_norm_(model.parameters(), 0.01)\n",
        """    norm = sum(p.grad.square().sum() for p in model.parameters())
    if dist.is_initialized():
        dist.all_reduce(norm)
    for p in model.parameters():
        p.grad *= 0.01 / norm.sqrt()
""",
        "sync/clip-norm-overreduced",
    ),
    ("schedule-in-a-global", "0.1 / (1", "0.1 / (1 + rank()", "sync/control-desync"),
)
