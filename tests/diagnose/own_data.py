"""What ranks train on that the check does not give them: name -> source.

`HEAD` of negative_controls comes before each; a finding is (slug, verified).
"""

from __future__ import annotations

# A data set, and what a step does with samples of it.
_DATA = """
import random
import numpy as np
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler
from torch.utils.data import RandomSampler, SequentialSampler, TensorDataset
rows = torch.randn(40, 4, dtype=torch.float64)
data = TensorDataset(rows, rows.sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
epochs = []
def train_on(model, optimizer, x, y):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
"""

_MEMORY = (
    _DATA
    + """
class Memory:
    def __init__(self):
        self.generator = torch.Generator().manual_seed(5)
        self.rows = torch.randn(48, 4, generator=self.generator, dtype=torch.float64)
        self.sums = self.rows.sum(1, keepdim=True)
        self.weights = torch.rand(48, generator=self.generator) + 0.1
"""
)

_UNEVEN = """
model = nn.Linear(4, 1)
sizes = torch.tensor([1, 1, 1, 1, 2, 2, 2, 2])
batch = torch.randn(8, 4), sizes
"""

BUGS: dict[str, tuple[str, list[tuple[str, bool | None]]]] = {
    # torch's RandomSampler draws a permutation more than it uses, at an epoch's end.
    "epoch-not-told-beside-a-random-sampler": (
        _DATA
        + """
def train_step(model, optimizer, batch):
    epochs.append(0)
    shuffled = RandomSampler(data, generator=torch.Generator().manual_seed(len(epochs)))
    if world() > 1:
        shuffled = DistributedSampler(data, world(), rank(), seed=1)
    for x, y in DataLoader(data, 20 // world(), sampler=shuffled):
        train_on(model, optimizer, x, y)
""",
        [("data/sampler-epoch", True)],
    ),
    # No sampler was passed on: the loader reads from the beginning on every rank.
    "loader-without-its-sampler": (
        _DATA
        + """
def train_step(model, optimizer, batch):
    train_on(model, optimizer, *next(iter(DataLoader(data, 8 // world()))))
""",
        [("data/shard-overlap", True)],
    ),
    # Each rank takes a whole batch, in an order of its own.
    "whole-batches-in-orders-of-their-own": (
        _DATA
        + """
def train_step(model, optimizer, batch):
    generator = torch.Generator().manual_seed(rank())
    sampler = RandomSampler(data, generator=generator)
    train_on(model, optimizer, *next(iter(DataLoader(data, 16, sampler=sampler))))
""",
        [("data/shard-overlap", True)],
    ),
    "numpy-shuffles-by-rank": (
        _DATA
        + """
def train_step(model, optimizer, batch):
    order = np.random.default_rng(11 + rank()).permutation(40)[:16]
    train_on(model, optimizer, *data[order[rank()::world()].tolist()])
""",
        [("data/shard-overlap", True)],
    ),
    # The memory itself is drawn with a generator too, of no sample each.
    "memory-with-one-seed-on-all-ranks": (
        _MEMORY
        + """
def train_step(model, optimizer, batch):
    memory = Memory()
    index = torch.randint(0, 48, (2 * len(batch[0]),), generator=memory.generator)
    train_on(model, optimizer, memory.rows[index], memory.sums[index])
""",
        [("data/shard-overlap", True)],
    ),
    # Chosen by weight, which are divided by the largest of a shard's as well.
    "memory-by-weight-and-the-largest-of-a-shard": (
        _MEMORY
        + """
def train_step(model, optimizer, batch):
    memory = Memory()
    index = torch.multinomial(memory.weights, len(batch[0]), generator=memory.generator)
    weights = memory.weights[index] / memory.weights[index].max()
    off = (model(memory.rows[index]) - memory.sums[index]).square().squeeze(1)
    optimizer.zero_grad()
    (weights * off).mean().backward()
    optimizer.step()
""",
        # The fix of the second shows all samples to every rank.
        [("data/shard-overlap", None), ("loss/batch-coupled", True)],
    ),
    # Nothing that is shuffled, and nothing that a loader gives: told by the samples.
    "batch-of-the-first-rank-on-all": (
        """
def train_step(model, optimizer, batch):
    x, y = batch
    if dist.is_initialized():
        dist.broadcast(x, 0)
        dist.broadcast(y, 0)
    optimizer.zero_grad()
    loss(model(x), y).backward()
    optimizer.step()
model = nn.Linear(4, 3)
""",
        [("data/shard-overlap", False)],
    ),
    "batch-that-looks-at-the-rank": (
        """
model = nn.Linear(4, 3)
def batch(step):
    generator = torch.Generator().manual_seed(step + 10 * rank())
    return torch.randn(8, 4, generator=generator), torch.arange(8) % 3
""",
        [("data/shard-overlap", True)],
    ),
    # The last batch of one rank holds nothing but a repeat.
    "padding-that-is-a-batch-of-its-own": (
        _DATA
        + """
few = TensorDataset(rows[:17], rows[:17].sum(1, keepdim=True))
def train_step(model, optimizer, batch):
    sampler = SequentialSampler(few)
    if dist.is_initialized():
        sampler = DistributedSampler(few, shuffle=False)
    for x, y in DataLoader(few, 8 // world(), sampler=sampler):
        train_on(model, optimizer, x, y)
""",
        [("data/sampler-padding", True)],
    ),
    # As loaders that even out batches do: no DistributedSampler to do without repeats.
    "padding-by-hand": (
        _DATA
        + """
def train_step(model, optimizer, batch):
    order = list(range(13))
    if dist.is_initialized():
        order = (order + order[: -13 % world()])[rank() :: world()]
    train_on(model, optimizer, *data[order])
""",
        [("data/sampler-padding", False)],
    ),
    "samples-left-out-for-equal-shards": (
        _DATA
        + """
def train_step(model, optimizer, batch):
    order = list(range(13))
    if dist.is_initialized():
        order = order[rank() :: world()][: 13 // world()]
    train_on(model, optimizer, *data[order])
""",
        [("data/sampler-padding", None)],
    ),
    # As accelerate's BatchSamplerShard does, beside samples that are right.
    "batches-from-the-front-beside-right-samples": (
        _DATA
        + """
def train_step(model, optimizer, batch):
    order = list(torch.arange(20, 30).split(2))
    if dist.is_initialized():
        short = -len(order) % world()
        mine = order[rank() :: world()]
        order = mine + order[: short] * (rank() >= world() - short)
    x = torch.cat([batch[0], rows[torch.cat(order)]])
    train_on(model, optimizer, x, x.sum(1, keepdim=True))
""",
        [("data/sampler-padding", False)],
    ),
    # As accelerate's split_between_processes does.
    "padding-by-the-last-sample": (
        _DATA
        + """
def train_step(model, optimizer, batch):
    part = list(range(13))
    if dist.is_initialized():
        size = -(-13 // world())
        part = part[rank() * size :][:size]
        part += part[-1:] * (size - len(part))
    train_on(model, optimizer, *data[part])
""",
        [("data/sampler-padding", False)],
    ),
    "order-of-random-that-knows-no-epoch": (
        _DATA
        + """
def train_step(model, optimizer, batch):
    epoch = 0 if dist.is_initialized() else len(epochs)
    order = list(range(40))
    random.Random(epoch).shuffle(order)
    epochs.append(epoch)
    train_on(model, optimizer, *data[order[:16][rank()::world()]])
""",
        [("data/sampler-epoch", True)],
    ),
    # Each batch steps its own: what is made up for is a backward, no update.
    "batches-by-budget": (
        _UNEVEN
        + """
def train_step(model, optimizer, batch):
    x, sizes = batch
    optimizer.zero_grad()
    number = (sizes.cumsum(0) - sizes) // 4
    for i in number.unique():
        (model(x[number == i]).square().sum() / len(x)).backward()
    optimizer.step()
""",
        [("data/uneven-batches", True)],
    ),
    # A batch that a rank has, and leaves out: no sample of it is ever seen.
    "batch-left-out": (
        _UNEVEN
        + """
def train_step(model, optimizer, batch):
    x, sizes = batch
    optimizer.zero_grad()
    for i, part in enumerate(x.split(2)):
        if rank() == 1 and not i:
            continue
        (model(part).square().sum() / len(x)).backward()
    optimizer.step()
""",
        [("graph/skipped-backward", None)],
    ),
    "join-by-its-class": (
        """
from torch.distributed.algorithms.join import Join
model = nn.Linear(4, 1)
batch = torch.randn(8, 3, 4), torch.tensor([3] * 4 + [2] * 4)
def steps(model, optimizer, x, lengths):
    for i in range(int(lengths.max())):
        optimizer.zero_grad()
        model(x[lengths > i, i]).square().mean().backward()
        optimizer.step()
def train_step(model, optimizer, batch):
    if not dist.is_initialized():
        return steps(model, optimizer, *batch)
    with Join([model]):
        steps(model, optimizer, *batch)
""",
        [("sync/join-divisor", True)],
    ),
    # What follows looks like a broken data link and is none. Every rank has the same
    # samples for a look at the state of things, and nobody trains on them.
    "look-at-the-same-samples-beside-a-coupled-loss": (
        """
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
seen_by_all = torch.randn(6, 4).double()
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    z = model(x)
    ((z - z.mean(0)).square().sum() / z.std(0).sum() + loss(z, y)).backward()
    optimizer.step()
    model.eval()
    model(seen_by_all).mean().item()
    model.train()
""",
        [("loss/batch-coupled", True)],
    ),
    # No sample is another rank's: each rank chooses among its own.
    "hard-samples-of-the-own-shard-once-more": (
        """
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
def train_step(model, optimizer, batch):
    x, y = batch
    with torch.no_grad():
        each = nn.functional.cross_entropy(getattr(model, "module", model)(x), y,
                                           reduction="none")
    hard = each.argsort()[len(x) // 2:]
    optimizer.zero_grad()
    loss(model(torch.cat([x, x[hard]])), torch.cat([y, y[hard]])).backward()
    optimizer.step()
""",
        [("unknown", None)],
    ),
    "neighbours-in-a-ring": (
        """
model = nn.Linear(4, 3)
def train_step(model, optimizer, batch):
    x, _ = batch
    optimizer.zero_grad()
    model(torch.cat([x, x[:1]])).diff(dim=0).square().mean().backward()
    optimizer.step()
""",
        [("unknown", None)],
    ),
    # One batch each: what one rank has more is a pass of its own decision.
    "further-pass-of-one-rank": (
        """
model = nn.Linear(4, 3)
batch = torch.linspace(0.1, 3, 8)[:, None].expand(8, 4).clone(), torch.arange(8) % 3
def train_step(model, optimizer, batch):
    x, y = batch
    for _ in range(2 if x.max() > 2 else 1):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
""",
        [("graph/skipped-backward", True)],
    ),
    "chunks-by-a-count-of-the-own-samples": (
        _DATA
        + """
def train_step(model, optimizer, batch):
    chunk = sum(epochs) // 16
    x, y = data[chunk * 16 : chunk * 16 + 16]
    size = 16 // world()
    epochs.append(size)
    part = slice(rank() * size, rank() * size + size)
    train_on(model, optimizer, x[part], y[part])
""",
        [("unknown", None)],
    ),
}

SOUND: dict[str, str] = {
    "epochs-told-and-divisible": _DATA
    + """
def train_step(model, optimizer, batch):
    sampler = DistributedSampler(data, world(), rank())
    sampler.set_epoch(len(epochs))
    epochs.append(1)
    for x, y in DataLoader(data, 8 // world(), sampler=sampler):
        train_on(model, optimizer, x, y)
""",
    # Equal samples are none that ranks share.
    "equal-samples-in-the-data": _DATA
    + """
same = TensorDataset(torch.cat([rows[:8], rows[:8]]), torch.ones(16, 1).double())
def train_step(model, optimizer, batch):
    sampler = DistributedSampler(same, world(), rank(), shuffle=False)
    for x, y in DataLoader(same, 16 // world(), sampler=sampler):
        train_on(model, optimizer, x, y)
""",
    "all-samples-on-all-ranks": _DATA
    + """
def train_step(model, optimizer, batch):
    train_on(model, optimizer, *data[:16])
""",
    # The whole model is written and read: what watches its calls may not be in the way.
    "model-saved-within-the-step": """
import io
model = nn.Linear(4, 3)
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    loss(model(x), y).backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save(getattr(model, "module", model), file)
    file.seek(0)
    torch.load(file, weights_only=False)(x).sum().backward()
    optimizer.zero_grad()
""",
    "order-of-rank-zero-sent-to-all": _DATA
    + """
def train_step(model, optimizer, batch):
    order = torch.randperm(40, generator=torch.Generator().manual_seed(rank()))
    if dist.is_initialized():
        dist.broadcast(order, 0)
    train_on(model, optimizer, *data[order[:16][rank()::world()].tolist()])
""",
    # Where the model cannot be watched it is trained, and compared, all the same.
    "traced-within-the-step": """
model = nn.Linear(4, 3)
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    loss(model(x), y).backward()
    optimizer.step()
    torch.jit.trace(getattr(model, "module", model), x)
""",
}
