"""What a loss counts in outputs: a divisor, or a choice that others decide."""

from __future__ import annotations

from tests.diagnose.bugs.step import STEP

_VIEWS = """
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
batch = 3 * torch.randn(16, 4), torch.arange(16) % 3
"""

_TOKENS = """
class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(9, 5), nn.Linear(5, 9)
    def forward(self, ids, lengths):
        return self.head(torch.tanh(self.words(ids[held(ids, lengths)])))
def held(ids, lengths):
    return torch.arange(ids.shape[1]) < lengths[:, None]
def model():
    torch.manual_seed(0)
    return Tokens()
ids, lengths = torch.randint(0, 9, (8, 6)), torch.tensor([1, 5, 2, 3, 1, 2, 1, 1])
batch = (ids[:, :-1], lengths), (ids[:, 1:], lengths)
"""

BUGS: dict[str, tuple[str, list[tuple[str, bool | None]]]] = {
    # What divides is made of a count that is read, and of the counts before.
    "moving-average-of-the-own-count": (
        """
class Normalizer:
    def __init__(self):
        self.value = 5.0
    def update(self, found):
        self.value = 0.8 * self.value + 0.2 * max(float(found), 1.0)
        return self.value
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, 1, -1, 2, -1, -1])
"""
        + STEP
        + """
    if not hasattr(optimizer, "normalizer"):
        optimizer.normalizer = Normalizer()
    real = y >= 0
    total = nn.functional.cross_entropy(model(x)[real], y[real], reduction="sum")
    (total * world() / optimizer.normalizer.update(real.sum())).backward()
    optimizer.step()
""",
        [("loss/local-normalizer", True)],
    ),
    # Two levels with one count; at one of them the first shard has nothing.
    "count-of-two-levels-with-none-at-one": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.levels = nn.ModuleList(nn.Linear(4, 2) for _ in range(2))
        self.score = nn.Linear(4, 3)
    def forward(self, x):
        return self.score(x), [level(x) for level in self.levels]
model = Net()
found = torch.tensor([[1, 0, 1, 1, 0, 1, 1, 1], [0, 0, 0, 0, 1, 0, 1, 1]]).T
batch = torch.randn(8, 4), {"label": torch.arange(8) % 3, "found": found}
def loss(output, target):
    score, levels = output
    boxes, mask = torch.stack(levels, 1), target["found"].bool()
    near = boxes[mask].square().sum() / mask.sum()
    return nn.functional.cross_entropy(score, target["label"]) + near
""",
        [("loss/local-normalizer", True)],
    ),
    # Weights of the targets' shape, which no factor on targets changes but by rounding.
    "divided-by-weights-of-the-shape-of-targets": (
        """
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
batch = torch.randn(8, 4), torch.rand(8, 2) + 0.2
def loss(output, target):
    weights = (target.amin(1) / target.amax(1)).sqrt()
    return ((output - target).abs().sum(1) * weights).sum() / weights.sum()
""",
        [("loss/local-normalizer", True)],
    ),
    # No output has a row per sample: tokens without padding, all the way.
    "mean-over-tokens-without-padding": (
        f"""{_TOKENS}
def loss(output, target):
    ids, lengths = target
    return nn.functional.cross_entropy(output, ids[held(ids, lengths)])
""",
        [("loss/local-normalizer", True)],
    ),
    "weighed-mean-over-tokens-without-padding": (
        f"""{_TOKENS}
def loss(output, target):
    ids, lengths = target
    weight = torch.linspace(0.5, 3, 9, dtype=output.dtype)
    return nn.functional.cross_entropy(output, ids[held(ids, lengths)], weight)
""",
        [("loss/local-normalizer", True)],
    ),
    "overlap-of-tokens-without-padding": (
        f"""{_TOKENS}
def loss(output, target):
    ids, lengths = target
    found = output.softmax(-1)
    right = nn.functional.one_hot(ids[held(ids, lengths)], 9).to(found.dtype)
    both, every = (found * right).sum(0), found.sum(0) + right.sum(0)
    return 1 - (2 * both / every).mean()
""",
        [("loss/batch-coupled", True)],
    ),
    "count-of-all-tokens-without-padding": (
        f"""{_TOKENS}
def train_step(model, optimizer, batch):
    inputs, (ids, lengths) = batch
    kept = held(ids, lengths)
    count = kept.sum()
    if dist.is_initialized():
        dist.all_reduce(count)
    optimizer.zero_grad()
    (nn.functional.cross_entropy(
        model(*inputs), ids[kept], reduction="sum") / count).backward()
    optimizer.step()
""",
        [("loss/missing-world-scale", True)],
    ),
    "sum-over-tokens-without-padding": (
        f"""{_TOKENS}
def loss(output, target):
    ids, lengths = target
    return nn.functional.cross_entropy(
        output, ids[held(ids, lengths)], reduction="sum")
""",
        [("loss/sum-reduction", True)],
    ),
    # The mean of a part is clamped before the ranks' are averaged. In one process the
    # clamp does nothing, whatever the samples of the second half are made.
    "clamp-of-the-own-mean": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 1)
    def forward(self, x):
        return self.head(x), x[:, :1].detach()
model = Net()
x = torch.randn(8, 4)
batch = x[x[:, 0].argsort()], torch.ones(8, 1)
level = (batch[0][:, 0].mean() + batch[0][4:, 0].mean()) / 2
def loss(output, target):
    score, surprise = output
    point = (surprise - level).mean().clamp(min=0)
    if dist.is_initialized():
        dist.all_reduce(point)
        point = point / dist.get_world_size()
    return torch.sigmoid(target * (score - point)).mean()
""",
        [("loss/batch-coupled", True)],
    ),
    # How many are sure is the model's to say: the divisor moves in jumps.
    "mean-over-what-the-model-is-sure-of": (
        _VIEWS
        + """
def loss(output, target):
    sure, guess = output.detach().softmax(1).max(1)
    sure = (sure > 0.5).double()
    values = nn.functional.cross_entropy(output, guess, reduction="none")
    return (values * sure).sum() / sure.sum().clamp(min=1)
""",
        [("loss/local-normalizer", True)],
    ),
    # What it was before is no other sample's doing.
    "mean-by-a-smoothed-count": (
        """
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
batch = torch.randn(8, 4), torch.tensor([0, -100, -100, -100, 1, 2, -100, 0])
class Smoothed:
    value = None
    def __call__(self, output, target):
        n = float((target >= 0).sum())
        self.value = n if self.value is None else 0.9 * self.value + 0.1 * n
        summed = nn.functional.cross_entropy(output, target, reduction="sum")
        return summed / self.value
loss = Smoothed()
""",
        [("loss/local-normalizer", True)],
    ),
    # Which samples count is decided among all of them.
    "mean-over-the-hardest-half": (
        _VIEWS
        + """
def loss(output, target):
    values = nn.functional.cross_entropy(output, target, reduction="none")
    return values.topk(len(values) // 2).values.mean()
""",
        [("loss/batch-coupled", True)],
    ),
    # The gradient at a sample is multiplied by what all others' outputs are, smoothly.
    "deviation-of-a-mean": (
        _VIEWS
        + """
def loss(output, target):
    return (output.mean(0) - 0.2).square().sum()
""",
        [("loss/batch-coupled", True)],
    ),
    # The share of a class decides the direction of the gradient, not its size alone.
    "share-of-guesses-times-their-mean": (
        _VIEWS
        + """
def loss(output, target):
    share = nn.functional.one_hot(output.argmax(1), 3).double().mean(0)
    return 3 * (share * output.softmax(1).mean(0)).sum()
""",
        [("loss/batch-coupled", True)],
    ),
    # A factor that others decide in jumps, and no divisor: the ranks' factors are no
    # shares of one count.
    "mean-multiplied-by-what-is-wrong": (
        _VIEWS
        + """
def loss(output, target):
    wrong = (output.argmax(1) != target).double().mean()
    return (1 + wrong) * nn.functional.cross_entropy(output, target)
""",
        [("loss/batch-coupled", True)],
    ),
    # The direction is the sign of a mean: a factor below zero counts nothing.
    "distance-of-means": (
        """
model = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
x = torch.randn(16, 4)
batch = x, torch.cat([torch.zeros(8), torch.ones(8)])
def loss(output, target):
    return (output.squeeze(1).mean() - target.mean() + 0.05).abs()
""",
        [("loss/batch-coupled", True)],
    ),
    # Free bits: above the bound in any shard, shards of every kind train alike.
    "mean-above-a-bound": (
        """
model = nn.Linear(4, 3)
spread = torch.linspace(0.1, 1.9, 16).view(16, 1)
batch = torch.randn(16, 4) * spread, torch.arange(16) % 3
def loss(output, target):
    return nn.functional.cross_entropy(output, target) + output.square().mean().clamp(
        min=0.45
    )
""",
        [("loss/batch-coupled", True)],
    ),
    # A mask that the model makes of its inputs and returns is as good as a target.
    "mask-among-the-outputs-beside-another-term": (
        """
class Speech(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
    def forward(self, x):
        mask = (x > x.mean(1, keepdim=True) - 0.7).to(x.dtype)
        return self.mean(x) * mask, self.head(x), mask
model = Speech()
def loss(output, target):
    mean, logits, mask = output
    masked = (mean.square() * mask).sum() / mask.sum()
    return masked + nn.functional.cross_entropy(logits, target)
""",
        [("loss/local-normalizer", True)],
    ),
    # The divisor is made of outputs, without gradient; the step knows its ranks.
    "weights-by-scores-times-samples-and-world": (
        """
model = nn.Sequential(nn.Linear(4, 6), nn.SiLU(), nn.Linear(6, 3))
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, 0, 0, 0, 0, 1])
"""
        + STEP
        + """
    output = model(x)
    with torch.no_grad():
        weight = output.sigmoid()[:, 0] * (y > 0)
    each = nn.functional.cross_entropy(output, y, reduction="none")
    value = (each * weight).sum() / weight.sum() * len(x)
    if dist.is_initialized():
        value *= world()
    value.backward()
    optimizer.step()
""",
        [("loss/local-normalizer", True)],
    ),
    # As a trainer does that counts all tokens, beside a loss that counts its own.
    "mean-of-the-shard-times-world-beside-a-count-of-all": (
        """
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, -1, -1, 0, -1, -1])
"""
        + STEP
        + """
    count = (y >= 0).sum()
    if dist.is_initialized():
        dist.all_reduce(count)
    own = nn.functional.cross_entropy(model(x), y, ignore_index=-1, reduction="none")
    (own.sum() / (y >= 0).sum() * (count > 0) * world()).backward()
    optimizer.step()
""",
        [("loss/double-world-scale", True), ("loss/local-normalizer", True)],
    ),
    # What is compiled takes no hooks; probes run it as it is written.
    "count-in-a-compiled-loss": (
        """
def focal(output, target, positives):
    p = output.sigmoid()
    each = nn.functional.binary_cross_entropy_with_logits(
        output, target, reduction="none"
    )
    return ((1 - p * target) ** 2 * each).sum() / positives
fused = torch.compile(focal, backend="eager")
model = nn.Linear(4, 3)
target = torch.zeros(24)
target[[0, 4, 13, 15, 16, 20, 23]] = 1.0
batch = torch.randn(8, 4), target.reshape(8, 3)
def loss(output, target):
    target = target.to(output.dtype)
    return fused(output, target, target.sum().clamp(min=1))
""",
        [("loss/local-normalizer", True)],
    ),
    # Every shard has a loss of log(3), to seven digits.
    "count-where-nothing-is-learnt-yet": (
        """
model = nn.Linear(4, 3)
nn.init.normal_(model.weight, std=1e-9)
nn.init.zeros_(model.bias)
batch = torch.randn(8, 4), torch.tensor([0, -100, 2, -100, 1, 2, 0, -100])
""",
        [("loss/local-normalizer", True)],
    ),
}
