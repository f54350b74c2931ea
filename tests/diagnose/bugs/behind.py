"""What the fix of a loss hides: a run with all samples on every rank mends it."""

from __future__ import annotations

from tests.diagnose.bugs.step import STEP

_MASKED = """
batch = torch.randn(8, 4), torch.tensor([1, -1, 2, 0, -1, -1, -1, 1])
def masked(output, y):
    kept = (y >= 0).to(output.dtype)
    each = nn.functional.cross_entropy(output, y.clamp(min=0), reduction="none")
    return (each * kept).sum() / kept.sum()
"""
_AVERAGE = """
class WithAverage(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.average = nn.Linear(4, 3), nn.Linear(4, 3).requires_grad_(False)
    def forward(self, x):
        return self.body(x)
    @torch.no_grad()
    def follow(self, decay):
        for slow, fast in zip(self.average.parameters(), self.body.parameters()):
            slow.lerp_(fast, 1 - decay)
model = WithAverage()
def bare(model):
    return model.module if isinstance(model, DDP) else model
"""
_POLYAK = """
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

BUGS: dict[str, tuple[str, list[tuple[str, bool | None]]]] = {
    "average-by-the-own-samples-behind-a-masked-mean": (
        _MASKED
        + _AVERAGE
        + STEP
        + """
    masked(model(x), y).backward()
    optimizer.step()
    bare(model).follow(0.5 ** (len(x) / 10))
""",
        [("loss/local-normalizer", True), ("state/ema-teacher-divergence", True)],
    ),
    # The fix of the loss shows all samples to the whole step.
    "average-by-the-own-samples-behind-an-overlap": (
        _AVERAGE
        + STEP
        + """
    p = model(x).softmax(1)[torch.arange(len(y)), y]
    (1 - p.sum() / (p + 1).sum() + p.square().sum() / len(p) ** 2).backward()
    optimizer.step()
    bare(model).follow(0.5 ** (len(x) / 10))
""",
        [("loss/batch-coupled", True), ("state/ema-teacher-divergence", None)],
    ),
    # The average is right: nothing but the loss is wrong.
    "average-with-one-decay-behind-a-masked-mean": (
        _MASKED
        + _AVERAGE
        + STEP
        + """
    masked(model(x), y).backward()
    optimizer.step()
    bare(model).follow(0.5)
""",
        [("loss/local-normalizer", True)],
    ),
    "step-size-by-the-own-loss-behind-a-masked-mean": (
        _MASKED
        + _POLYAK
        + STEP
        + """
    value = masked(model(x), y)
    value.backward()
    optimizer.note(value)
    optimizer.step()
""",
        [("loss/local-normalizer", True), ("sync/control-desync", None)],
    ),
    # Moments that the loss is made of are no average that is kept beside it.
    "moments-of-targets-that-are-kept-as-weights": (
        """
class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.moments = nn.Linear(4, 1), nn.Module()
        self.moments.both = nn.Parameter(torch.ones(2), requires_grad=False)
    def forward(self, x):
        return self.net(x)
model = Critic()
batch = torch.randn(8, 4), torch.arange(8.0)[:, None]
"""
        + STEP
        + """
    moments = getattr(model, "module", model).moments
    values = model(x)
    with torch.no_grad():
        moments.both.lerp_(torch.stack([y.mean(), y.square().mean()]), 0.5)
        mean, square = moments.both
    nn.functional.mse_loss(values, (y - mean) / square.sqrt()).backward()
    optimizer.step()
""",
        [("loss/batch-coupled", True)],
    ),
    "scale-by-the-own-logits-behind-an-overlap": (
        """
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.rand(8, 3)
batch[0][4:] *= 60
scaler = {"scale": 4.0}
def overlap(output, target):
    p = output.sigmoid()
    return 1 - (p * target).sum() / (p + target - p * target).sum()
"""
        + STEP
        + """
    output = model(x)
    scaler["scale"] *= 0.5 if float(output.detach().abs().max()) > 9 else 2
    (overlap(output, y) * scaler["scale"]).backward()
    for p in model.parameters():
        p.grad /= scaler["scale"]
    optimizer.step()
""",
        [("loss/batch-coupled", True), ("sync/scaler-desync", None)],
    ),
    # One fix of the whole loss would mend both.
    "codebook-of-the-shard-behind-a-count-of-all": (
        """
class Codes(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.randn(3, 4))
    def forward(self, x):
        code = self.codes[torch.cdist(x.detach(), self.codes).argmin(1)]
        if self.training:
            self.codes.lerp_(x.detach().mean(0), 0.3)
        return code
class Codec(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 4), nn.Linear(4, 4)
        self.codes = Codes()
    def forward(self, x):
        z = self.encoder(x)
        code = self.codes(z)
        commit = (z - code.detach()).square().mean()
        return self.decoder(z + (code - z).detach()), commit
model = Codec()
batch = torch.randn(8, 4), (torch.randn(8, 4), torch.tensor([1.0, 1, 1, 1, 0, 1, 0, 0]))
def loss(output, target):
    (made, commit), (wanted, valid) = output, target
    count = valid.sum()
    if dist.is_initialized():
        dist.all_reduce(count)
    return ((made - wanted).abs().mean(1) * valid).sum() / count + 0.25 * commit
""",
        [
            ("state/buffer-broadcast-overwrites", True),
            ("loss/missing-world-scale", True),
        ],
    ),
}
