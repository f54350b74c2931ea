"""Targets that look wrong and are right: name -> source. No rule may fire on them."""

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
}
