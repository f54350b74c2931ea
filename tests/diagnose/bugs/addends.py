"""Losses that add up terms, of which some are wrong, in one way or in several."""

from __future__ import annotations

from tests.diagnose.bugs.step import STEP

BUGS: dict[str, tuple[str, list[tuple[str, bool | None]]]] = {
    # One of them is made within the model, of what its router returns, and is no output
    # with samples.
    "balance-within-the-model-beside-a-count": (
        """
class Routed(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(4, 3)
        self.experts = nn.ModuleList([nn.Linear(4, 3) for _ in range(3)])
    def forward(self, x):
        shares = self.router(x).softmax(1)
        mixed = torch.stack([e(x) for e in self.experts], 1) * shares[:, :, None]
        return mixed.sum(1), 3 * shares.mean(0).square().sum()
model = Routed()
batch = torch.randn(8, 4), torch.tensor([0, -100, 2, -100, 1, 2, 0, 1])
def loss(output, target):
    return nn.functional.cross_entropy(output[0], target) + 0.2 * output[1]
""",
        [("loss/local-normalizer", True), ("loss/batch-coupled", True)],
    ),
    # Pairs of the shard in one addend, and a count of the shard in the other.
    "pairs-beside-a-count": (
        """
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
batch = torch.randn(8, 4), torch.tensor([0, -100, 2, -100, 1, 2, 0, 1])
def loss(output, target):
    rows = nn.functional.normalize(output, dim=1)
    spread = torch.logsumexp((rows @ rows.T).flatten(), 0)
    return nn.functional.cross_entropy(output, target) + 0.3 * spread
""",
        [("loss/local-normalizer", True), ("loss/batch-coupled", True)],
    ),
    # The same with a sum in place of the count, and an addend that is right.
    "pairs-beside-a-sum-and-a-mean": (
        """
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
def loss(output, target):
    rows = nn.functional.normalize(output, dim=1)
    spread = torch.logsumexp((rows @ rows.T).flatten(), 0)
    small = output.square().mean()
    return 0.3 * spread + nn.functional.cross_entropy(
        output, target, reduction="sum"
    ) + small
""",
        [("loss/batch-coupled", True), ("loss/sum-reduction", True)],
    ),
    # Two updates by one batch, as PPO has them, of the same loss.
    "one-term-of-two-updates-lacks-the-world-size": (
        """
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, 1, -1, 2, -1, -1])
def count(mask):
    found = mask.sum()
    if dist.is_initialized():
        dist.all_reduce(found)
    return found
"""
        + STEP
        + """
    for _ in range(2):
        output, real = model(x), y >= 0
        each = nn.functional.cross_entropy(output, y.clamp(min=0), reduction="none")
        small = (output.square().sum(1) * real).sum() / count(real)
        optimizer.zero_grad()
        ((each * real).sum() * world() / count(real) + small).backward()
        optimizer.step()
""",
        [("loss/missing-world-scale", True)],
    ),
    # A loop over classes adds up what others decide: some of it is a mere count.
    "ranks-of-errors-by-class": (
        """
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
def loss(output, target):
    shares, total = (output + torch.tensor([2.0, 0, 0])).softmax(1), 0
    for c in range(3):
        found = (target == c).to(output.dtype)
        errors, order = (found - shares[:, c]).abs().sort(descending=True)
        found = found[order]
        both = found.sum() - found.cumsum(0)
        jaccard = 1 - both / (found.sum() + (1 - found).cumsum(0))
        slopes = torch.cat([jaccard[:1], jaccard[1:] - jaccard[:-1]])
        total = total + torch.dot(errors, slopes)
    return total / 3
""",
        [("loss/batch-coupled", True)],
    ),
    # A criterion with weights of its own, in a DDP of its own beside the model's.
    "proxies-in-a-criterion-wrapped-for-itself": (
        f"""
class Proxies(nn.Module):
    def __init__(self):
        super().__init__()
        self.proxies = nn.Parameter(torch.randn(3, 6))
    def forward(self, x, y):
        right = nn.functional.one_hot(y, 3).bool()
        distance = torch.cdist(x, self.proxies)
        near = torch.where(right, distance.exp(), torch.zeros_like(distance)).sum(0)
        far = torch.where(right, torch.zeros_like(distance), (-distance).exp()).sum(0)
        return near.log1p().sum() / right.any(0).sum() + far.log1p().mean()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
        self.criterion = Proxies()
model = Net()
batch = torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 0, 2, 2, 1])
def wrap(model):
    model.body, model.criterion = DDP(model.body), DDP(model.criterion)
    return model
{STEP}
    model.criterion(model.body(x), y).backward()
    optimizer.step()
""",
        [("loss/batch-coupled", True)],
    ),
    # Two addends, and one cause in both.
    "counts-in-two-addends": (
        """
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
batch = torch.randn(8, 4), torch.tensor([0, -100, 2, -100, 1, 2, 0, 1])
def loss(output, target):
    kept = target != -100
    size = (output.square().sum(1) * kept).sum() / kept.sum()
    return nn.functional.cross_entropy(output, target) + 0.3 * size
""",
        [("loss/local-normalizer", True)],
    ),
    # The same two causes in a step of one's own.
    "pairs-beside-a-sum-in-a-step": (
        f"""
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
{STEP}
    output = model(x)
    rows = nn.functional.normalize(output, dim=1)
    spread = torch.logsumexp((rows @ rows.T).flatten(), 0)
    fit = nn.functional.cross_entropy(output, y, reduction="sum")
    (0.3 * spread + fit).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
""",
        [("loss/batch-coupled", True), ("loss/sum-reduction", True)],
    ),
    # One output is computed from another: each addend has its own at both.
    "counts-and-sums-at-outputs-of-each-other": (
        f"""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
    def forward(self, x):
        hidden = self.body(x).tanh()
        return hidden, self.head(hidden)
model = Net()
batch = torch.randn(8, 4), torch.tensor([0, -100, 2, -100, 1, 2, 0, 1])
{STEP}
    hidden, output = model(x)
    (nn.functional.cross_entropy(output, y) + 0.1 * hidden.square().sum()).backward()
    optimizer.step()
""",
        [("loss/local-normalizer", True), ("loss/sum-reduction", True)],
    ),
    # One term is divided by what all ranks count, the other by what each does.
    "count-of-all-without-its-factor-beside-a-count": (
        f"""
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
batch = torch.randn(8, 4), torch.tensor([0, -100, 2, -100, 1, 2, 0, 1])
{STEP}
    output, kept = model(x), y != -100
    count = kept.sum()
    if dist.is_initialized():
        dist.all_reduce(count)
    fit = nn.functional.cross_entropy(output, y, reduction="sum") / count
    (fit + 0.1 * output.logsumexp(1)[kept].square().mean()).backward()
    optimizer.step()
""",
        [("loss/missing-world-scale", True), ("loss/local-normalizer", True)],
    ),
    # One of two terms is wrong, and by one factor: rules that see the sum of both would
    # have to guess it.
    "count-of-all-without-its-factor-beside-a-mean": (
        f"""
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
batch = torch.randn(8, 4), torch.tensor([0, -100, 2, -100, 1, 2, 0, 1])
{STEP}
    output, count = model(x), (y != -100).sum()
    if dist.is_initialized():
        dist.all_reduce(count)
    fit = nn.functional.cross_entropy(output, y, reduction="sum") / count
    (fit + 0.1 * output.square().mean()).backward()
    optimizer.step()
""",
        [("loss/missing-world-scale", True)],
    ),
    # Of one term a mean is taken over the shard, of the other over all: one exchange.
    "scatter-around-means-of-classes-that-carry-no-gradient": (
        """
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
batch = torch.randn(8, 4), torch.tensor([0, 1, 0, 1, 1, 0, 0, 1])
def total(x):
    if dist.is_initialized():
        x = x.clone()
        dist.all_reduce(x)
    return x
def loss(output, target):
    hot = nn.functional.one_hot(target, 2).to(output.dtype)
    counts = total(hot.sum(0))
    centres = total(hot.t() @ output) / counts[:, None]
    within = (output - centres[target]).square().sum(1).mean()
    middle = (centres * counts[:, None]).sum(0) / counts.sum()
    between = ((centres - middle).square().sum(1) * counts).sum() / counts.sum()
    return within - 0.3 * between
""",
        [("collective/no-autograd", True)],
    ),
}

SOUND = {
    # A term of the model's own samples, one by one, beside a mean.
    "penalty-within-the-model-beside-a-mean": """
class Routed(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.head = nn.Linear(4, 3), nn.Linear(3, 3)
    def forward(self, x):
        found = self.router(x)
        return self.head(found.tanh()), found.logsumexp(1).square().mean()
model = Routed()
def loss(output, target):
    return nn.functional.cross_entropy(output[0], target) + 0.2 * output[1]
""",
    # Terms that are right, each in its own way.
    "count-of-all-beside-a-mean": f"""
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
batch = torch.randn(8, 4), torch.tensor([0, -100, 2, -100, 1, 2, 0, 1])
{STEP}
    output, count, world = model(x), (y != -100).sum(), 1
    if dist.is_initialized():
        dist.all_reduce(count)
        world = dist.get_world_size()
    fit = world * nn.functional.cross_entropy(output, y, reduction="sum") / count
    (fit + 0.1 * output.square().mean()).backward()
    optimizer.step()
""",
}
