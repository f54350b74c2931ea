"""Samples whose loss knows which sample stands beside them."""

from __future__ import annotations

_MODEL = """
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
batch = torch.randn(8, 4), torch.arange(8) % 3
def entropy(output, target):
    return nn.functional.cross_entropy(output, target)
"""

_NET = "model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))"
_SORTED = """
batch = torch.randn(8, 5, 4), torch.tensor([2, 1, 2, 3, 5, 4, 5, 3])
def train_step(model, optimizer, batch):
    x, lengths = batch
    lengths, order = lengths.sort(descending=True, stable=True)
    out = CALL
    valid = torch.arange(5) < lengths[:, None]
    optimizer.zero_grad()
    (out - 1).square().mean(2)[valid].mean().backward()
    optimizer.step()
"""

# Samples of several rows each, which lie one after the other: graphs of nodes.
_RAGGED = """
sizes = torch.tensor([3, 2, 4, 2, 5, 3, 4, 5])
batch = (torch.randn(8, 5, 4), sizes), torch.arange(8) % 3
class Graphs:
    def __init__(self, x, sizes):
        self.nodes = x[torch.arange(5) < sizes[:, None]]
        self.graph = torch.arange(len(x)).repeat_interleave(sizes)
        self.n = len(x)
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss(model(Graphs(*batch[0])), batch[1]).backward()
    optimizer.step()
"""

BUGS: dict[str, tuple[str, list[tuple[str, bool | None]]]] = {
    # The split is the rank's own, and nothing else is drawn: no noise.
    "split-by-chance-after-seeding-by-rank": (
        """
from torch.utils.data import Subset, TensorDataset, random_split
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
def chosen():
    torch.manual_seed(5 + 100 * rank())
    rows = torch.arange(96.0).view(24, 4).sin()
    train, _ = random_split(TensorDataset(rows, torch.arange(24) % 3), [16, 8])
    return Subset(train, range(rank(), 16, world()))
def train_step(model, optimizer, batch):
    x, y = batch
    kept = chosen()
    old, labels = zip(*(kept[i] for i in range(len(x))))
    optimizer.zero_grad()
    x, y = torch.cat([x, torch.stack(old).to(x)]), torch.cat([y, torch.stack(labels)])
    loss(model(x), y).backward()
    optimizer.step()
batch = torch.randn(8, 4), torch.arange(8) % 3
""",
        [("data/shard-overlap", True)],
    ),
    # Nodes compete with those of all graphs; a graph's number is one within the shard.
    "gate-over-the-nodes-of-all-graphs": (
        """
class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, 1)
    def forward(self, rows, graph, n):
        share = self.gate(rows).softmax(0) * n
        return rows.new_zeros(n, 6).index_add(0, graph, share * rows)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.pool, self.head = nn.Linear(4, 6), Pool(), nn.Linear(6, 3)
    def forward(self, data):
        rows = self.body(data.nodes).tanh()
        return self.head(self.pool(rows, data.graph, data.n))
model = Net()
"""
        + _RAGGED,
        [("forward/batch-coupled", True)],
    ),
    # Targets are classes, and no output moves another's gradient.
    "targets-of-the-sample-before": (
        _MODEL
        + """
def loss(output, target):
    return 0.7 * entropy(output, target) + 0.3 * entropy(output, target.roll(1))
""",
        [("loss/batch-coupled", True)],
    ),
    "samples-mixed-with-the-one-before": (
        _MODEL
        + """
def train_step(model, optimizer, batch):
    x, y = batch
    output = model(0.7 * x + 0.3 * x.roll(1, 0))
    optimizer.zero_grad()
    (0.7 * entropy(output, y) + 0.3 * entropy(output, y.roll(1))).backward()
    optimizer.step()
""",
        [("forward/batch-coupled", True)],
    ),
    # Pairs stay pairs in another order of shards: only their number differs.
    "masked-pairs": (
        """
model = nn.Linear(4, 1)
batch = torch.randn(16, 4), torch.tensor([1, 1, 0, 0, 1, 1, 1, 1, 1, 1] + [0] * 6)
def loss(output, target):
    r = output.squeeze(-1)
    valid = target[0::2].double()
    values = nn.functional.softplus(r[1::2] - r[0::2]) + 0.1 * r[0::2].square()
    return (values * valid).sum() / valid.sum() + 0.1 * r.mean()
""",
        [("loss/local-normalizer", True)],
    ),
    # The step sorts by length, and a shard is sorted otherwise than the batch.
    "words-counted-in-a-shard-that-is-sorted": (
        _NET + _SORTED.replace("CALL", "model(x[order])"),
        [("loss/local-normalizer", True)],
    ),
    # So, and one of two wrapped parts is called past its wrapper.
    "sorted-words-and-a-part-past-its-wrapper": (
        """
class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.coder, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
model = Pair()
def wrap(model):
    model.coder, model.head = DDP(model.coder), DDP(model.head)
    return model
"""
        + _SORTED.replace(
            "CALL",
            'getattr(model.head, "module", model.head)(model.coder(x[order]).tanh())',
        ),
        [("loss/local-normalizer", True), ("ddp/forward-bypassed", True)],
    ),
    "sum-over-a-shard-that-is-sorted": (
        _NET
        + _SORTED.replace("CALL", "model(x[order])").replace(
            "[valid].mean()", "[valid].sum().mul(0.1)"
        ),
        [("loss/sum-reduction", True)],
    ),
    # The samples with labels are right, and in every step others.
    "samples-without-labels-in-one-order": (
        """
from torch.utils.data import DistributedSampler
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
pool = torch.randn(32, 4)
class Unlabelled:
    def __init__(self):
        seat = (world(), rank())
        self.sampler = DistributedSampler(range(32), *seat, shuffle=True, seed=3)
        self.epoch = 0
    def next(self, n):
        if not dist.is_initialized():
            self.sampler.set_epoch(self.epoch)
        self.epoch += 1
        return pool[list(self.sampler)[:n]]
def batch(step):
    g = torch.Generator().manual_seed(step)
    return torch.randn(8, 4, generator=g), torch.arange(8) % 3
def train_step(model, optimizer, batch):
    x, y = batch
    if not hasattr(optimizer, "unlabelled"):
        optimizer.unlabelled = Unlabelled()
    u = optimizer.unlabelled.next(len(x)).to(x)
    known, free = model(torch.cat([x, u])).split(len(x))
    optimizer.zero_grad()
    fit = nn.functional.cross_entropy(known, y)
    guess = (2 * free.detach()).softmax(1)
    (fit + nn.functional.cross_entropy(free, guess)).backward()
    optimizer.step()
""",
        [("data/sampler-epoch", True)],
    ),
    # Four answers to a question stand two apart, rewards relate them; what the ranks
    # exchange, the number of words, is right.
    "groups-at-a-stride-beside-a-count-of-all": (
        """
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
words = torch.tensor([4, 3, 4, 2, 1, 1, 2, 1])
reward = torch.tensor([0.3, 2.0, -1.0, 0.5, 1.5, -0.2, 3.0, 0.9])
batch = torch.randn(8, 5, 4), (torch.arange(5) < words[:, None], reward)
def train_step(model, optimizer, batch):
    x, (mask, reward) = batch
    group = reward.view(4, -1)
    gain = ((group - group.mean(0)) / (group.std(0) + 1e-4)).flatten()
    count = mask.sum()
    if dist.is_initialized():
        dist.all_reduce(count)
    optimizer.zero_grad()
    score = model(x).log_softmax(-1)[..., 0] * gain[:, None]
    (-(score * mask).sum() * world() / count).backward()
    optimizer.step()
""",
        [("data/batch-layout", True)],
    ),
}

SOUND = {
    # The same, each node among those of its own graph.
    "gate-over-the-nodes-of-a-graph": """
class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, 1)
    def forward(self, rows, graph, n):
        weight = self.gate(rows).exp()
        total = rows.new_zeros(n, 1).index_add(0, graph, weight)
        share = weight / total[graph]
        return rows.new_zeros(n, 6).index_add(0, graph, share * rows)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.pool, self.head = nn.Linear(4, 6), Pool(), nn.Linear(6, 3)
    def forward(self, data):
        rows = self.body(data.nodes).tanh()
        return self.head(self.pool(rows, data.graph, data.n))
model = Net()
"""
    + _RAGGED,
    # What is mixed stays within a shard.
    "targets-of-the-sample-before-in-groups-of-two": _MODEL
    + """
def loss(output, target):
    turned = target.view(-1, 2).roll(1, 1).flatten()
    return 0.7 * entropy(output, target) + 0.3 * entropy(output, turned)
""",
}
