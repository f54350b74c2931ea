"""Bugs in micro-batches that are not all of one size, or are parts of a shard."""

from __future__ import annotations

from tests.diagnose.bugs.step import STEP

_LINEAR = "model = nn.Linear(4, 3)\n"
_SAMPLES = "batch = torch.randn(16, 4), torch.arange(16) % 3\n"
_MASKED = (
    "batch = torch.randn(16, 4), torch.arange(16) % 3\nbatch[1][[2, 5, 6, 13]] = -100\n"
)
_PIECES = """
    pieces = list(zip(x.split(5), y.split(5)))
    for x_part, y_part in pieces:
"""
_FLAGGED = """
read = torch.tensor([1, 1, 1, 0, 1, 1, 0, 1, 0, 1, 1, 0, 1, 0, 0, 1]).bool()
batch = torch.randn(16, 4), (torch.arange(16) % 3, read)
"""
_READ = """
def train_step(model, optimizer, batch):
    x, (y, read) = batch
    x, y = x[read], y[read]
    optimizer.zero_grad()
"""
# Updates after two micro-batches, and after what is left of them.
_THREE = f"""
import contextlib
model = nn.Linear(4, 3)
batch = torch.randn(8, 3, 4), torch.arange(24).view(8, 3) % 3
{STEP}
    for i in range(3):"""
_UPDATED = """
        held = not last and isinstance(model, DDP)
        with model.no_sync() if held else contextlib.nullcontext():
            loss(model(x[:, i]), y[:, i]).backward()
        if i in (1, 2):
            optimizer.step()
            optimizer.zero_grad()"""
_MEAN = "nn.functional.cross_entropy(model(x_part), y_part"

# The count is that of all ranks' micro-batches, not of the step's.
_BY_ALL = f"""
{_LINEAR}{_MASKED}
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    for x, y in zip(batch[0].chunk(2), batch[1].chunk(2)):
        count = (y != -100).sum().double()
        if dist.is_initialized():
            dist.all_reduce(count)
        total = nn.functional.cross_entropy(model(x), y, reduction="sum")
        (world() * total / count / 2).backward()
    optimizer.step()
"""

BUGS: dict[str, tuple[str, list[tuple[str, bool | None]]]] = {
    "micro-batches-by-the-counts-of-all-ranks": (
        _BY_ALL,
        [("loss/accum-normalizer", True)],
    ),
    # One process has micro-batches of 3, 3, 2 samples, and each rank two of 2: those of
    # a rank have one factor, which no count of its shard explains.
    "chunks-of-a-number-that-a-shard-has-not": (
        """
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    for x, y in zip(batch[0].chunk(3), batch[1].chunk(3)):
        (nn.functional.cross_entropy(model(x), y) / 3).backward()
    optimizer.step()
""",
        [("loss/accum-normalizer", True)],
    ),
    "last-of-three-micro-batches-is-left-local": (
        f"""
{_THREE}
        last = i == 1{_UPDATED}
""",
        [("sync/no-sync-off-by-one", True)],
    ),
    # 16 samples are 5, 5, 5 and 1, 8 are 5 and 3: the last ones weigh more.
    "mean-of-means-of-unequal-pieces": (
        f"""{_LINEAR}{_SAMPLES}{STEP}{_PIECES}
        ({_MEAN}) / len(pieces)).backward()
    optimizer.step()
""",
        [("loss/accum-normalizer", True)],
    ),
    "mean-of-masked-means-of-unequal-pieces": (
        f"""{_LINEAR}{_MASKED}{STEP}{_PIECES}
        ({_MEAN}) / len(pieces)).backward()
    optimizer.step()
""",
        [("loss/accum-normalizer", True)],
    ),
    "sum-of-means-of-unequal-pieces": (
        f"""{_LINEAR}{_SAMPLES}{STEP}{_PIECES}
        {_MEAN}).backward()
    optimizer.step()
""",
        [("loss/accum-normalizer", True)],
    ),
    # A rank's 8 samples are one piece, and 16 are 9 and 7.
    "pieces-larger-than-a-shard": (
        f"""{_LINEAR}{_SAMPLES}{STEP}{_PIECES.replace("5", "9")}
        ({_MEAN}) / len(pieces)).backward()
    optimizer.step()
""",
        [("loss/accum-normalizer", True)],
    ),
    # As many micro-batches as their rows' counts fill, other numbers of them on ranks;
    # recurrent state has its samples in the second dimension.
    "sums-of-means-by-budget-and-recurrent": (
        f"""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(4, 5, batch_first=True), nn.Linear(5, 3)
    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])
model = Net()
batch = torch.randn(16, 3, 4), torch.arange(16) % 3
batch[1][[2, 5, 6, 13]] = -100
{STEP}
    number = ((y != -100).cumsum(0) - 1).clamp(min=0) // 4
    for i in number.unique():
        own = number == i
        nn.functional.cross_entropy(model(x[own]), y[own]).backward()
    optimizer.step()
""",
        [("loss/accum-normalizer", True)],
    ),
    # Every sample counts alike, so that no mean was taken.
    "sum-in-unequal-pieces": (
        f"""{_LINEAR}{_SAMPLES}{STEP}{_PIECES}
        {_MEAN}, reduction="sum").backward()
    optimizer.step()
""",
        [("loss/sum-reduction", True)],
    ),
    "count-of-the-shard-in-unequal-pieces": (
        f"""{_LINEAR}{_MASKED}{STEP}
    count = (y != -100).sum()
{_PIECES}
        ({_MEAN}, reduction="sum") / count).backward()
    optimizer.step()
""",
        [("loss/local-normalizer", True)],
    ),
    "pairs-in-unequal-pieces": (
        f"""{_LINEAR}{_SAMPLES}{STEP}{_PIECES}
        z = nn.functional.normalize(model(x_part), dim=1)
        own = torch.arange(len(z))
        (nn.functional.cross_entropy(z @ z.T, own) * len(z) / len(x)).backward()
    optimizer.step()
""",
        [("loss/batch-coupled", True)],
    ),
    # Its proof divides the one process's micro-batches among the ranks.
    "products-in-unequal-pieces": (
        f"""{_LINEAR}{_SAMPLES}{STEP}{_PIECES}
        z = model(x_part)
        own = torch.arange(len(z))
        (nn.functional.cross_entropy(z @ z.T, own) * len(z) / len(x)).backward()
    optimizer.step()
""",
        [("loss/batch-coupled", True)],
    ),
    # What could not be read is left out before the model is called: 6 and 4 rows.
    "mean-over-what-was-read": (
        f"""{_LINEAR}{_FLAGGED}{_READ}
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
        [("loss/local-normalizer", True)],
    ),
    "sum-over-what-was-read": (
        f"""{_LINEAR}{_FLAGGED}{_READ}
    nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
    optimizer.step()
""",
        [("loss/sum-reduction", True)],
    ),
    "pairs-of-what-was-read": (
        f"""{_LINEAR}{_FLAGGED}{_READ}
    z = nn.functional.normalize(model(x), dim=1)
    values = nn.functional.cross_entropy(z @ z.T, torch.arange(len(z)))
    (values * len(z)).backward()
    optimizer.step()
""",
        [("loss/batch-coupled", True)],
    ),
    "mean-over-what-was-read-behind-batch-norm": (
        f"""
model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
{_FLAGGED}{_READ}
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
        [("norm/local-batch-stats", True), ("loss/local-normalizer", True)],
    ),
    # Fixes of one fault that exclude each other are proposed beside the other fault's.
    "masked-means-of-micro-batches-and-the-first-synced": (
        f"""{_LINEAR}
batch = torch.randn(32, 4), torch.arange(32) % 3
batch[1][[0, 1, 2, 4, 5, 8, 17]] = -100
{STEP}
    import contextlib
    for i, (x_part, y_part) in enumerate(zip(x.chunk(4), y.chunk(4))):
        local = hasattr(model, "no_sync") and i > 0
        with model.no_sync() if local else contextlib.nullcontext():
            ({_MEAN}, ignore_index=-100) / 4).backward()
    optimizer.step()
""",
        [("loss/accum-normalizer", True), ("sync/no-sync-off-by-one", True)],
    ),
    # A checkpointed layer that is called twice does not train without static_graph.
    "no-sync-on-a-graph-that-has-to-be-static": (
        f"""
from torch.utils.checkpoint import checkpoint
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.start, self.layer = nn.Linear(4, 4), nn.Linear(4, 4)
    def forward(self, x):
        x = self.start(x)
        for _ in range(2):
            x = checkpoint(self.layer, x, use_reentrant=True).tanh()
        return x
model = Net()
{_SAMPLES}
def wrap(model):
    return nn.parallel.DistributedDataParallel(model, static_graph=True)
{STEP}
    from contextlib import nullcontext
    for i, (x_part, y_part) in enumerate(zip(x.chunk(2), y.chunk(2))):
        quiet = not i and hasattr(model, "no_sync")
        with model.no_sync() if quiet else nullcontext():
            ({_MEAN}) / 2).backward()
    optimizer.step()
""",
        [("sync/static-graph-no-sync", True)],
    ),
    # The ranks' first halves together are not the first half of one process's batch.
    "batch-norm-in-halves-of-a-shard": (
        f"""
model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
{_SAMPLES}{STEP}
    for x_part, y_part in zip(x.chunk(2), y.chunk(2)):
        ({_MEAN}) / 2).backward()
    optimizer.step()
""",
        [("norm/local-batch-stats", True)],
    ),
    # 6, 6 and 4 samples in one process, 6 and 2 on a rank: which, is drawn.
    "drawn-pieces-of-which-the-last-is-small": (
        f"""{_LINEAR}batch = torch.randn(16, 4), torch.arange(16) % 3
{STEP}
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(5))
    parts = order.split(6)
    for rows in parts:
        (nn.functional.cross_entropy(model(x[rows]), y[rows]) / len(parts)).backward()
    optimizer.step()
""",
        [("loss/accum-normalizer", True)],
    ),
    # As DP-SGD does: a backward for every sample, which DDP averages with the others.
    "samples-clipped-one-by-one-through-the-wrapper": (
        f"""{_LINEAR}batch = torch.randn(8, 4), torch.arange(8) % 3
{STEP}
    parameters = list(model.parameters())
    sums = [torch.zeros_like(p) for p in parameters]
    for i in range(len(x)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        for total, p in zip(sums, parameters):
            total += p.grad
    for total, p in zip(sums, parameters):
        p.grad = total / len(x)
    optimizer.step()
""",
        [("sync/clip-before-reduce", True)],
    ),
}

SOUND = {
    "last-of-three-micro-batches-with-an-update-of-its-own": f"""
{_THREE}
        last = i in (1, 2){_UPDATED}
""",
    "pieces-weighed-by-their-sizes": f"""{_LINEAR}{_SAMPLES}{STEP}{_PIECES}
        ({_MEAN}) * len(x_part) / len(x)).backward()
    optimizer.step()
""",
    "mean-over-what-all-ranks-read": f"""{_LINEAR}{_FLAGGED}{_READ}
    count = torch.tensor(float(len(x)), dtype=x.dtype)
    if dist.is_initialized():
        dist.all_reduce(count)
    total = nn.functional.cross_entropy(model(x), y, reduction="sum")
    (world() * total / count).backward()
    optimizer.step()
""",
    # 4 samples in one process's every piece, and in the ranks': the same ones.
    "batch-norm-in-pieces-of-one-size": f"""
model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
{_SAMPLES}{STEP}
    for x_part, y_part in zip(x.split(4), y.split(4)):
        ({_MEAN}) / (len(x) / 4)).backward()
    optimizer.step()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.reset_running_stats()
""",
}
