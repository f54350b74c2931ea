"""Bugs of a loss: name -> (source, findings)."""

from __future__ import annotations

from tests.diagnose.bugs.step import STEP

BUGS: dict[str, tuple[str, list[tuple[str, bool | None]]]] = {
    # Its gradient is 0 in the first step, and the model's output is the loss.
    "divergence-from-a-standard-normal-by-rows": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(3, 4))
        self.log_var = nn.Parameter(torch.zeros(3, 4))
    def forward(self, x, y):
        own = torch.distributions.Normal(self.mean, (self.log_var / 2).exp())
        to = torch.distributions.Normal(torch.zeros(3, 4), torch.ones(3, 4))
        far = torch.distributions.kl_divergence(own, to.expand((3, 4)))
        output = x @ (self.mean + self.log_var.exp()).T
        return nn.functional.cross_entropy(output, y) + far.sum() / len(y)
model = Net
batch = (torch.randn(8, 4), torch.arange(8) % 3), None
def loss(output, target):
    return output
""",
        [("loss/regularizer-scale", True)],
    ),
    # A prior's moments are kept in an attribute: no data are in its term.
    "sum-beside-a-prior-kept-by-the-model": (
        """
class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.prior = {"mean": torch.full((3, 4), 0.3), "deviation": torch.ones(3, 4)}
    def forward(self, x, y):
        error = (self.weight - self.prior["mean"]) / self.prior["deviation"]
        fit = nn.functional.cross_entropy(super().forward(x), y, reduction="sum")
        return fit + error.square().sum()
model = Net()
batch = (torch.randn(8, 4), torch.arange(8) % 3), None
loss = lambda output, _: output
""",
        [("loss/sum-reduction", True)],
    ),
    # Lengths are an output too: they follow the samples where those change places.
    "summed-ctc-over-the-characters-of-a-shard": (
        """
class Net(nn.Linear):
    def forward(self, x, lengths):
        return super().forward(x), lengths // 2
model = Net(4, 5)
lengths = torch.tensor([1, 2, 1, 2, 3, 3, 2, 3])
text = torch.randint(1, 5, (8, 3)) * (torch.arange(3) < lengths[:, None])
batch = (torch.randn(8, 9, 4), torch.randint(16, 19, (8,))), (text, lengths)
def loss(output, target):
    (rows, steps), (text, lengths) = output, target
    rows = rows.transpose(0, 1).log_softmax(2)
    total = nn.functional.ctc_loss(rows, text, steps, lengths, reduction="sum")
    return total / lengths.sum()
""",
        [("loss/local-normalizer", True)],
    ),
    # Every second sample would be as many positives on each rank, by chance.
    "no-positives-on-one-rank": (
        """
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.tensor([1, 2, 0, 0, 0, 0, 0, 0])
def loss(output, target):
    positive = target > 0
    each = nn.functional.cross_entropy(output, target, reduction="none")
    return output.square().mean() + each[positive].sum() / positive.sum()
""",
        [("loss/empty-shard", True)],
    ),
    # The loss normalises its targets: no output moves any other sample's gradient.
    "advantages-standardised-in-the-shard": (
        """
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
batch = torch.randn(8, 4), torch.randn(8) * torch.linspace(1, 3, 8)
def loss(output, target):
    advantage = (target - target.mean()) / target.std()
    return (output.squeeze(1).exp() * advantage).mean() + output.square().mean()
""",
        [("loss/batch-coupled", True)],
    ),
    # The same two terms, and one of them divided by a sum of weights.
    "weighted-mean-beside-a-mean": (
        """
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
batch = torch.randn(8, 4), torch.linspace(1, 3, 8)
def loss(output, weight):
    value = output.squeeze(1)
    return (value.exp() * weight).sum() / weight.sum() + value.square().mean()
""",
        [("loss/local-normalizer", True)],
    ),
    # Scores of two layers, put together by the model itself.
    "router-scores-of-layers-as-one-output": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.routers = nn.ModuleList([nn.Linear(4, 3), nn.Linear(3, 3)])
        self.experts = nn.ModuleList([nn.Linear(4, 9), nn.Linear(3, 9)])
    def forward(self, x):
        scores = []
        for router, experts in zip(self.routers, self.experts):
            scores.append(router(x))
            each = experts(x).unflatten(1, (3, 3))
            x = (scores[-1].softmax(-1)[..., None] * each).sum(1)
        return x, torch.stack(scores, 1)
model = Net()
def loss(output, target):
    logits, scores = output
    p = scores.softmax(-1).flatten(0, 1)
    share = nn.functional.one_hot(p.argmax(1), 3).to(p.dtype).mean(0)
    balance = 3 * (share * p.mean(0)).sum()
    return nn.functional.cross_entropy(logits, target) + 0.1 * balance
""",
        [("loss/router-aux", True)],
    ),
    # The loss begins at the probabilities, behind the softmax.
    "router-probabilities-as-output": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(4, 3), nn.Linear(4, 9)
    def forward(self, x):
        p = self.router(x).softmax(-1)
        each = self.experts(x).unflatten(1, (3, 3))
        return (p[..., None] * each).sum(1), p
model = Net()
def loss(output, target):
    logits, p = output
    share = nn.functional.one_hot(p.argmax(1), 3).to(p.dtype).mean(0)
    balance = 3 * (share * p.mean(0)).sum()
    return nn.functional.cross_entropy(logits, target) + 0.1 * balance
""",
        [("loss/router-aux", True)],
    ),
    # Its gradient has one factor per rank, as a quotient's, and it is none.
    "logarithm-of-the-mean": (
        """
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
batch = torch.randn(8, 4), torch.randn(8, 3) * torch.linspace(0.2, 3, 8)[:, None]
def loss(output, target):
    return 10 * torch.log10(nn.functional.mse_loss(output, target))
""",
        [("loss/batch-coupled", True)],
    ),
    # As a router's share does it changes by jumps, alike for all samples.
    "mean-of-the-batch-that-is-floored": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.head = nn.Linear(4, 3), nn.Linear(3, 3)
    def forward(self, x):
        mean = self.mean(x)
        return self.head(mean), mean.square()
model = Net()
batch = torch.randn(8, 4) * torch.linspace(0.1, 2, 8)[:, None], torch.arange(8) % 3
def loss(output, target):
    logits, kl = output
    floored = kl.mean(0).clamp(min=0.4).sum()
    return nn.functional.cross_entropy(logits, target) + floored
""",
        [("loss/batch-coupled", True)],
    ),
    # A force is the slope of an energy: forward differentiates its own modules.
    "masked-forces-of-an-energy-model": (
        """
class Forces(nn.Module):
    def __init__(self):
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            total = self.energy(x).sum()
            return torch.autograd.grad(total, x, create_graph=True)[0]
model = Forces()
def loss(output, target):
    real = target > 0
    return output[real].square().mean()
""",
        [("loss/local-normalizer", True)],
    ),
    # Clusters by a softmax that goes on; their penalty is one norm over all samples.
    "norm-over-the-batch-behind-a-softmax": (
        """
class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.assign = nn.Linear(4, 5), nn.Linear(4, 3)
        self.out = nn.Linear(5, 3)
    def forward(self, x):
        s = self.assign(x).softmax(-1)
        pooled = self.out(self.embed(x).tanh() * s[:, :1]) + s
        return pooled, (s.square().sum(-1) - 1).norm()
model = Pooled()
def loss(output, target):
    logits, penalty = output
    return nn.functional.cross_entropy(logits, target) + penalty
""",
        [("loss/batch-coupled", True)],
    ),
    # The loss itself is a sum; the step divides what backward made.
    "gradients-divided-by-the-count-of-all-ranks": (
        "model = nn.Linear(4, 3)"
        + STEP
        + """
    nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
    count = torch.tensor(float(len(y)))
    if dist.is_initialized():
        dist.all_reduce(count)
    for p in model.parameters():
        p.grad /= count
    optimizer.step()
""",
        [("loss/missing-world-scale", True)],
    ),
    # As ported from a framework that adds up what the replicas have.
    "sum-divided-by-a-constant-count-of-all": (
        """
model = nn.Linear(4, 3)
def loss(output, target):
    return (nn.functional.cross_entropy(output, target, reduction="none") / 8).sum()
""",
        [("loss/missing-world-scale", True)],
    ),
    "sum-divided-by-another-constant": (
        """
model = nn.Linear(4, 3)
def loss(output, target):
    return nn.functional.cross_entropy(output, target, reduction="sum") / 3
""",
        [("loss/sum-reduction", True)],
    ),
    # The embedding's gradient does not grow with the batch, that of the layer does.
    "sum-beside-an-embedding-by-frequency": (
        """
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(3, 4, scale_grad_by_freq=True)
        self.out = nn.Linear(4, 3)
    def forward(self, word):
        return self.out(self.words(word))
model = Words()
batch = torch.tensor([0, 0, 0, 1, 1, 2, 2, 0]), batch[1]
loss = nn.CrossEntropyLoss(reduction="sum")
""",
        [("loss/sum-reduction", True), ("loss/embedding-frequency", True)],
    ),
    # The temperature has no samples: it belongs to neither term's outputs.
    "contrast-with-a-temperature-beside-a-token-mean": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.tensor(0.5))
    def forward(self, x):
        return self.a(x), self.b(x), self.head(x), self.scale.exp()
model = Net()
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, -100, -100, 1, -100, 0])
def loss(output, target):
    a, b, logits, scale = output
    contrast = nn.functional.cross_entropy(scale * a @ b.t(), torch.arange(len(a)))
    return contrast + nn.functional.cross_entropy(logits, target)
""",
        [("loss/batch-coupled", True), ("loss/local-normalizer", True)],
    ),
    # In forward, behind modules of their own: no output has both.
    "sum-of-a-divergence-beside-a-mean-in-forward": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(4, 2), nn.Linear(2, 4)
    def forward(self, x):
        code = self.encode(x)
        error = (self.decode(code) - x).square().mean()
        return {"loss": error + 0.1 * code.square().sum()}
model = Net()
batch = {"x": torch.randn(8, 4)}
loss = None
""",
        [("loss/sum-reduction", True)],
    ),
    # What has no samples goes to the loss of all ranks as it is, whatever its length.
    "standardised-weights-beside-a-spread-without-samples": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.spread = nn.Linear(4, 3), nn.Parameter(torch.zeros(3))
    def forward(self, x):
        return self.mean(x), self.spread.exp()
model = Net()
batch = torch.randn(8, 4), torch.randn(8, 3), torch.randn(8)
def train_step(model, optimizer, batch):
    x, y, weight = batch
    optimizer.zero_grad()
    weight = (weight - weight.mean()) / weight.std()
    mean, spread = model(x)
    each = ((y - mean) / spread).square().sum(1)
    (each.neg().exp() * weight).mean().backward()
    optimizer.step()
""",
        [("loss/batch-coupled", True)],
    ),
    # The run with the loss of all samples gives all ranks one rate, too.
    "rate-by-the-own-loss-beside-an-overlap": (
        "model = nn.Linear(4, 3)"
        + STEP
        + """
    p = model(x).softmax(1)[torch.arange(len(y)), y]
    value = 1 - p.sum() / (p + 1).sum() + p.square().sum() / len(p) ** 2
    value.backward()
    optimizer.param_groups[0]["lr"] = 0.5 * value.item()
    optimizer.step()
""",
        [("loss/batch-coupled", True), ("sync/control-desync", None)],
    ),
    "router-beside-a-token-mean": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(4, 3), nn.Linear(4, 9)
    def forward(self, x):
        p = self.router(x).softmax(-1)
        each = self.experts(x).unflatten(1, (3, 3))
        return (p[..., None] * each).sum(1), p
model = Net()
batch = torch.randn(8, 4) * 3, torch.tensor([0, 1, 2, -100, -100, 1, -100, 0])
def loss(output, target):
    logits, p = output
    share = nn.functional.one_hot(p.argmax(1), 3).to(p.dtype).mean(0)
    return nn.functional.cross_entropy(logits, target) + 3 * (share * p.mean(0)).sum()
""",
        [("loss/local-normalizer", True), ("loss/router-aux", True)],
    ),
    # In the first step classes 1 fall on the ranks as the valid samples do.
    "two-counts-with-the-same-shares-at-first": (
        """
model = nn.Linear(4, 3)
def batch(step):
    g = torch.Generator().manual_seed(step)
    labels = [[1, 1, 0, 2, 1, 0, 0, 2], [0, 0, 2, 2, 1, 2, 0, 0], [2] * 7 + [1]][step]
    valid = [[1, 1, 0, 0, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0, 0], [1, 0] * 4][step]
    return torch.randn(8, 4, generator=g), (torch.tensor(labels), torch.tensor(valid))
def loss(output, target):
    label, valid = target
    each = nn.functional.cross_entropy(output, label, reduction="none")
    return (each * valid).sum() / valid.sum()
""",
        [("loss/local-normalizer", True)],
    ),
    # The gates' gradient at the output is the penalty's and the data's together.
    "penalty-of-an-output-beside-a-masked-mean": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.rand(4))
        self.out = nn.Linear(4, 3)
    def forward(self, x):
        return self.out(x * self.gate), self.gate
model = Net()
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, -100, -100, 1, -100, 0])
def loss(output, target):
    world = dist.get_world_size() if dist.is_initialized() else 1
    logits, gate = output
    return nn.functional.cross_entropy(logits, target) + world * gate.norm()
""",
        [("loss/local-normalizer", True), ("loss/regularizer-scale", True)],
    ),
    # The scale has a part in the data term as well; both are computed in forward.
    "learned-variance-multiplied-like-the-data": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)
        self.log_variance = nn.Parameter(torch.tensor(0.2))
    def forward(self, x, y):
        world = dist.get_world_size() if dist.is_initialized() else 1
        error = (self.net(x).squeeze(1) - y).square().sum() / 8
        loss = world * ((-self.log_variance).exp() * error + self.log_variance)
        return {"loss": loss}
model = Net()
batch = {"x": torch.randn(8, 4), "y": torch.randn(8)}
del loss
""",
        [("loss/regularizer-scale", True)],
    ),
    # A second backward: the penalty is added to nothing.
    "penalty-of-its-own-backward": (
        "model = nn.Linear(4, 3)"
        + STEP
        + """
    world = dist.get_world_size() if dist.is_initialized() else 1
    (world * 0.1 * sum(p.square().sum() for p in model.parameters())).backward()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
        [("loss/regularizer-scale", True)],
    ),
    # Its gradient passes by the outputs of all modules: it is one of the weights.
    "norm-of-all-gradients-penalised-in-forward": (
        """
class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    def forward(self, real, between):
        between.requires_grad_()
        slope, = torch.autograd.grad(
            self.net(between).sum(), between, create_graph=True
        )
        return self.net(real), (slope.norm() - 1).square()
model = Critic()
batch = (torch.randn(8, 4), torch.randn(8, 4)), torch.zeros(8)
def loss(output, target):
    return output[1] - output[0].mean()
""",
        [("loss/batch-coupled", True)],
    ),
    # Asked once, the answer kept; the sum over ranks is lost, its division is not.
    "entropy-of-codes-with-a-lost-sum-over-ranks": (
        """
import functools
@functools.cache
def distributed():
    return dist.is_initialized() and dist.get_world_size() > 1
def mean_over_ranks(t):
    if not distributed():
        return t
    dnn.all_reduce(t)
    return t / dist.get_world_size()
class Codes(nn.Module):
    def forward(self, x):
        p = mean_over_ranks(x.softmax(1).mean(0))
        return x.sign() + x - x.detach(), (p * p.log()).sum()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.codes, self.decode = nn.Linear(4, 3), Codes(), nn.Linear(3, 4)
    def forward(self, x):
        q, entropy = self.codes(self.encode(x))
        return self.decode(q), entropy
model = Net()
batch = torch.randn(8, 4), torch.randn(8, 4)
def loss(output, target):
    return nn.functional.mse_loss(output[0], target) + output[1]
""",
        [("loss/batch-coupled", True)],
    ),
    # With the whole loss times W the penalty would be too large; alone it is right.
    "sum-beside-a-penalty": (
        "model = nn.Linear(4, 3)"
        + STEP
        + """
    penalty = torch.zeros((1,))
    for p in model.parameters():
        penalty = penalty + 0.1 * p.square().sum()
    (nn.functional.cross_entropy(model(x), y, reduction="sum") + penalty).backward()
    optimizer.step()
""",
        [("loss/sum-reduction", True)],
    ),
    "sum-beside-a-penalty-of-its-own-backward": (
        "model = nn.Linear(4, 3)"
        + STEP
        + """
    (0.1 * sum(p.square().sum() for p in model.parameters())).backward()
    nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
    optimizer.step()
""",
        [("loss/sum-reduction", True)],
    ),
    # Two of three encoders go through the wrapper, and the loss is of statistics.
    "one-of-two-wrappers-bypassed-beside-an-overlap": (
        """
model = nn.ModuleDict({"a": nn.Linear(4, 3), "b": nn.Linear(3, 3)})
def wrap(model):
    model["a"], model["b"] = DDP(model["a"]), DDP(model["b"])
    return model
"""
        + STEP
        + """
    inner = getattr(model["a"], "module", model["a"])
    p = model["b"](inner(x)).softmax(1)[torch.arange(len(y)), y]
    (1 - p.sum() / (p + 1).sum() + p.square().mean()).backward()
    optimizer.step()
""",
        [("loss/batch-coupled", True), ("ddp/forward-bypassed", True)],
    ),
    # What is right at one output, and summed at the other.
    "sum-at-one-output-beside-a-counted-mean": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)
    def forward(self, x):
        return self.a(x), self.b(x)
model = Net()
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, -100, -100, 1, -100, 0])
def loss(output, target):
    count = (target != -100).sum()
    if dist.is_initialized():
        dist.all_reduce(count)
    first = nn.functional.cross_entropy(output[0], target, reduction="sum") / count
    return world() * first + output[1].square().sum()
""",
        [("loss/sum-reduction", True)],
    ),
    # The sum is divided after backward: by what is the rank's own there.
    "gradients-divided-by-the-own-count": (
        """
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, -100, -100, 1, -100, 0])
"""
        + STEP
        + """
    nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
    for p in model.parameters():
        p.grad.div_((y != -100).sum())
    optimizer.step()
""",
        [("loss/local-normalizer", True)],
    ),
    # The sums of probabilities are counts; one is added for smoothing.
    "overlap-smoothed-beside-counts": (
        """
model = nn.Linear(4, 3)
def loss(output, target):
    p, q = output.softmax(1), nn.functional.one_hot(target, 3)
    return 1 - (2 * (p * q).sum() + 1) / (p.sum() + q.sum() + 1)
""",
        [("loss/local-normalizer", True)],
    ),
    # What packs sequences hands on orders and counts of its own rows.
    "longest-of-the-shard-behind-packed-sequences": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)
    def forward(self, x, length):
        pack = nn.utils.rnn.pack_padded_sequence
        packed = pack(x, length, batch_first=True, enforce_sorted=False)
        hidden, _ = self.rnn(packed)
        return self.out(nn.utils.rnn.pad_packed_sequence(hidden, True, 0.0, 6)[0])
model = Net()
length = torch.tensor([2, 4, 1, 3, 6, 5, 2, 6])
batch = (torch.randn(8, 6, 3), length), (torch.randint(0, 2, (8, 6)), length)
def loss(output, target):
    label, length = target
    each = nn.functional.cross_entropy(output.mT, label, reduction="none")
    inside = torch.arange(6) < length[:, None]
    return (each * inside).sum() / (len(label) * length.max())
""",
        [("loss/local-normalizer", True)],
    ),
    # A bound of each gradient before it is averaged, and a loss of statistics.
    "clamped-by-hooks-beside-an-overlap": (
        """
def model():
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    for p in net.parameters():
        p.register_hook(lambda g: g.clamp(-0.02, 0.02))
    return net
def loss(output, target):
    p = output.softmax(1)[torch.arange(len(target)), target]
    return 1 - p.sum() / (p + 1).sum() + p.square().sum() / len(p) ** 2
"""
        + STEP
        + """
    loss(model(x), y).backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.02)
    optimizer.step()
""",
        [("loss/batch-coupled", True), ("sync/clip-before-reduce", True)],
    ),
    # Behind a softmax inside the network, yet no share of tokens: sizes of graphs.
    "sizes-of-others-behind-a-softmax": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.score, self.head = nn.Linear(4, 3), nn.Linear(3, 3)
    def forward(self, x):
        scores = self.score(x)
        return self.head(scores.softmax(-1).mean(1)), scores
model = Net()
size = torch.tensor([1.0, 2, 5, 3, 4, 5, 1, 2])
batch = torch.randn(8, 5, 4), (torch.arange(8) % 3, size)
def loss(output, target):
    logits, scores = output
    label, size = target
    purity = scores.softmax(-1).square().sum((1, 2)).mean() * (1 / size).mean()
    return nn.functional.cross_entropy(logits, label) + purity
""",
        [("loss/local-normalizer", True)],
    ),
    # Both answers to a prompt go through the model as two blocks of all prompts.
    "token-mean-beside-pairs-in-two-blocks": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 5)
    def forward(self, x):
        return self.net(torch.cat([x[:, 0], x[:, 1]]))
model = Net()
batch = torch.randn(8, 2, 3, 4), torch.arange(24).view(8, 3) % 5
batch[1][:3, 1:] = -100
def loss(output, target):
    chosen, rejected = output.chunk(2)
    nll = nn.functional.cross_entropy(chosen.flatten(0, 1), target.flatten())
    apart = chosen.mean((1, 2)) - rejected.mean((1, 2))
    return nll - nn.functional.logsigmoid(apart).mean()
""",
        [("loss/local-normalizer", True)],
    ),
    # As metric learning has it: modules of the loss get rows that it has mixed.
    "contrast-as-a-module-that-hands-on-to-another": (
        """
class Contrast(nn.Module):
    def __init__(self):
        super().__init__()
        self.soft = nn.Softplus()
    def forward(self, z, y):
        same = (y[:, None] == y[None]).to(z.dtype)
        apart = z @ z.t() * (1 - 2 * same)
        return self.soft(apart.logsumexp(1)).mean()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.contrast = nn.Linear(4, 5), Contrast()
    def forward(self, x, y):
        return {"loss": self.contrast(self.embed(x), y)}
model = Net()
batch = {"x": batch[0], "y": batch[1]}
del loss
""",
        [("loss/batch-coupled", True)],
    ),
    # DDP takes the mean: what the first rank alone has counts half.
    "penalty-on-the-first-rank": (
        "model = nn.Linear(4, 3)"
        + STEP
        + """
    value = nn.functional.cross_entropy(model(x), y)
    if rank() == 0:
        value = value + sum(p.square().sum() for p in model.parameters())
    value.backward()
    optimizer.step()
""",
        [("loss/regularizer-scale", True)],
    ),
    # With the loss of all samples on every rank the temperature gets it all, too.
    "hardest-samples-beside-a-temperature-outside": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.ones(()))
    def forward(self, x, y):
        each = nn.functional.cross_entropy(
            self.net(x) * self.scale, y, reduction="none"
        )
        return each.topk(len(x) // 2).values.mean()
def model():
    torch.manual_seed(0)
    return Net()
batch = (torch.randn(12, 4), torch.arange(12) % 3), torch.zeros(12)
def loss(output, target):
    return output
def wrap(model):
    model.net = DDP(model.net)
    return model
""",
        [("loss/batch-coupled", True), ("ddp/wrapper-missing", None)],
    ),
    # Here it is the step that makes two blocks, of the batch that it is given.
    "contrast-of-views-that-the-step-stacks": (
        "model = nn.Linear(4, 3)"
        """
batch = torch.randn(12, 4), torch.randn(12, 4)
"""
        + STEP
        + """
    first, second = model(torch.cat([x, y])).chunk(2)
    value = nn.functional.cross_entropy(first @ second.T, torch.arange(len(x)))
    value.backward()
    optimizer.step()
""",
        [("loss/batch-coupled", True)],
    ),
    # No factor makes something of it.
    "penalty-that-no-rank-has": (
        "model = nn.Linear(4, 3)"
        + STEP
        + """
    value = nn.functional.cross_entropy(model(x), y)
    if world() == 1:
        value = value + sum(p.square().sum() for p in model.parameters())
    value.backward()
    optimizer.step()
""",
        [("loss/regularizer-scale", None)],
    ),
    # As many features as a shard has samples: which are which is not for guessing.
    "coupled-columns-of-samples": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 6)
    def forward(self, x):
        return self.net(x).T
model = Net()
batch = torch.randn(12, 4), torch.zeros(12)
def loss(output, target):
    return (output - output.mean(1, keepdim=True)).square().mean().log()
""",
        [("loss/batch-coupled", True)],
    ),
    # The other shard has no gradient in one process, and one on its rank.
    "largest-error-of-the-batch": (
        """
model = nn.Linear(4, 3)
def loss(output, target):
    return (output - target[:, None]).square().amax()
""",
        [("loss/batch-coupled", True)],
    ),
    # At least so many pixels of a call, where fewer are hard: of each shard, then.
    "hardest-pixels-of-the-batch": (
        """
model = nn.Conv1d(4, 3, 1)
batch = torch.randn(8, 4, 6), torch.arange(48).reshape(8, 6) % 3
def loss(output, target):
    each = nn.functional.cross_entropy(output, target, reduction="none").flatten()
    hard = each[each > 1.5]
    return (hard if len(hard) >= 12 else each.topk(12).values).mean()
""",
        [("loss/batch-coupled", True)],
    ),
    # Both shards have the same samples in the first step, and so the same hardest ones.
    "hardest-quarter-of-samples-that-are-twice-there-at-first": (
        """
model = nn.Linear(4, 3)
def batch(step):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
    if step == 0:
        x[4:] = x[:4]
    return x, torch.arange(8) % 4 % 3
def loss(output, target):
    each = nn.functional.cross_entropy(output, target, reduction="none")
    return each.topk(len(each) // 4).values.mean()
""",
        [("loss/batch-coupled", True)],
    ),
    # Inputs and classes of a sample are mixed with those of its mirror image.
    "samples-mixed-with-those-from-the-other-end": (
        "model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))\n"
        "batch = torch.randn(8, 4), torch.tensor([0, 1, 2, 0, 2, 1, 1, 0])"
        + STEP
        + """
    output = model(0.7 * x + 0.3 * x.flip(0))
    (0.7 * loss(output, y) + 0.3 * loss(output, y.flip(0))).backward()
    optimizer.step()
""",
        [("forward/batch-coupled", True)],
    ),
    # The loss goes backward to the vectors, and these, chunk by chunk, to the model.
    "pairs-of-vectors-that-are-made-twice": (
        "import contextlib\n"
        "model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))"
        + STEP
        + """
    with torch.no_grad():
        z = torch.cat([model(part) for part in x.chunk(2)])
    z = z.requires_grad_()
    nn.functional.cross_entropy(z @ z.T.detach(), torch.arange(len(z))).backward()
    for i, (part, grad) in enumerate(zip(x.chunk(2), z.grad.chunk(2))):
        local = hasattr(model, "no_sync") and i == 0
        with model.no_sync() if local else contextlib.nullcontext():
            (model(part) * grad).sum().backward()
    optimizer.step()
""",
        [("loss/batch-coupled", True)],
    ),
    # A part of each sample comes from the one before it; all have one class.
    "inputs-cut-from-the-sample-before": (
        "model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))\n"
        "batch = torch.randn(8, 4), torch.zeros(8).long()"
        + STEP
        + """
    x = torch.cat([x[:, :2], x.roll(1, 0)[:, 2:]], 1)
    loss(model(x), y).backward()
    optimizer.step()
""",
        [("forward/batch-coupled", True)],
    ),
    # The model takes its weights from where no call shows them, below `module`.
    "advantages-standardised-in-a-model-called-by-its-weights": (
        """
class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.module = nn.Linear(4, 3)
    def forward(self, x, y, advantage):
        weights = {n: p.clone() for n, p in self.module.named_parameters()}
        out = x @ weights["weight"].T + weights["bias"]
        standardised = (advantage - advantage.mean()) / advantage.std()
        chosen = out.log_softmax(1).gather(1, y[:, None])
        return -(chosen * standardised[:, None]).mean()
model = Functional()
batch = (torch.randn(8, 4), torch.arange(8) % 3, torch.randn(8)), torch.zeros(8)
def loss(output, target):
    return output
""",
        [("loss/batch-coupled", True)],
    ),
    # The loss of all samples would have batch norm see all of them, too.
    "dice-inside-a-model-with-batch-norm": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU())
        self.head = nn.Linear(6, 1)
    def forward(self, x, y):
        p = self.head(self.body(x)).squeeze(1).sigmoid()
        return 1 - 2 * (p * y).sum() / (p + y).sum()
model = Net()
batch = (torch.randn(8, 4), (torch.arange(8) % 3 == 0).float()), torch.zeros(8)
def loss(output, target):
    return output
""",
        [("norm/local-batch-stats", True), ("loss/batch-coupled", True)],
    ),
    # What is wrapped is a module that holds the model, and computes the loss.
    "loss-of-a-module-around-the-model": (
        """
class WithLoss(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
    def forward(self, x, y):
        output = self.net(x)
        value = nn.functional.cross_entropy(output, y, reduction="none")
        return output, (value * (y > 0)).sum() / (y > 0).sum()
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
def wrap(model):
    return DDP(WithLoss(model))
def train_step(model, optimizer, batch):
    whole = model if isinstance(model, DDP) else WithLoss(model)
    optimizer.zero_grad()
    whole(*batch)[1].backward()
    optimizer.step()
""",
        [("loss/local-normalizer", True)],
    ),
}
