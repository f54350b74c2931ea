"""Bugs in steps that ask torch.autograd.grad for slopes through the model."""

from __future__ import annotations

from tests.diagnose.bugs.step import STEP

_NET = "model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))\n"
_SLOPE = "torch.autograd.grad(output.sum(), x, create_graph=True)[0]"
_GENERATOR = """
class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.style = nn.Sequential(nn.Linear(4, 6), nn.LeakyReLU(0.2))
        self.synthesis = nn.Sequential(nn.Linear(6, 8), nn.Softplus(), nn.Linear(8, 5))
    def forward(self, z):
        style = self.style(z)
        return self.synthesis(style), style
model = Generator()
batch = torch.randn(8, 4) * torch.linspace(0.2, 3, 8)[:, None], torch.randn(8, 5)
"""

BUGS: dict[str, tuple[str, list[tuple[str, bool | None]]]] = {
    # The penalty does not depend on the last bias, which the scores do.
    "penalty-with-a-backward-of-its-own": (
        "model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))\n"
        + STEP
        + """
    model(x).mean().backward()
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    ((slope.norm(dim=1) - 1) ** 2).mean().backward()
    optimizer.step()
""",
        [("ddp/autograd-grad", True)],
    ),
    # Scores of real and fake against each other's mean; the penalty is of a call that
    # DDP does not see.
    "relative-scores-and-a-penalty-that-bypasses-ddp": (
        """
class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    def forward(self, *signals):
        return self.net(torch.cat(signals)).chunk(len(signals))
model = Critic()
batch = torch.randn(8, 4) + torch.arange(8)[:, None] / 4, torch.randn(8, 4)
"""
        + STEP
        + """
    real, fake = model(x, y)
    each = nn.functional.softplus(fake - real.mean())
    (each + nn.functional.softplus(fake.mean() - real)).mean().backward()
    between = (0.3 * x + 0.7 * y).requires_grad_()
    scores = getattr(model, "module", model)(between)[0]
    (slope,) = torch.autograd.grad(scores.sum(), between, create_graph=True)
    (slope.norm(dim=1) - 1).square().mean().backward()
    optimizer.step()
""",
        [("loss/batch-coupled", True), ("ddp/forward-bypassed", True)],
    ),
    "masked-mean-and-a-slope-of-the-inputs": (
        _NET
        + "batch[1][:3] = -100\n"
        + STEP
        + f"""
    x = x.requires_grad_()
    output = model(x)
    slope = {_SLOPE}
    value = nn.functional.cross_entropy(output, y)
    (value + 0.1 * slope.square().sum(1).mean()).backward()
    optimizer.step()
""",
        [("loss/local-normalizer", True)],
    ),
    # A force is the slope of an energy by positions, which the model hands on. No
    # gradient at an output tells of it.
    "masked-forces-of-a-loss-that-makes-them": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    def forward(self, x):
        x = x.requires_grad_()
        return self.net(x), x
model = Net()
batch = torch.randn(8, 4), torch.arange(8) < 3
def loss(output, known):
    energy, x = output
    (force,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
    wrong = (force - 1).square().sum(1) * known
    return energy.square().mean() + wrong.sum() / known.sum().clamp(min=1)
""",
        [("unknown", None)],
    ),
    "summed-loss-and-a-slope-of-the-inputs": (
        _NET
        + STEP
        + f"""
    x = x.requires_grad_()
    output = model(x)
    slope = {_SLOPE}
    value = nn.functional.cross_entropy(output, y, reduction="sum")
    (value + 0.1 * slope.square().sum()).backward()
    optimizer.step()
""",
        [("loss/sum-reduction", True)],
    ),
    # One output is made of the other, and the step differentiates between them.
    "slope-between-two-outputs-of-a-summed-loss": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.style, self.image = nn.Linear(4, 5), nn.Linear(5, 6)
    def forward(self, x):
        w = self.style(x)
        return self.image(w.tanh()), w
model = Net()
"""
        + STEP
        + """
    image, w = model(x)
    (slope,) = torch.autograd.grad(image.square().sum(), w, create_graph=True)
    (image.square().sum() + slope.square().sum()).backward()
    optimizer.step()
""",
        [("loss/sum-reduction", True)],
    ),
    # The weight of a term is a ratio of two norms, both of the shard's gradients.
    "weight-by-gradients-of-the-shard": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.judge = nn.Linear(3, 1)
    def forward(self, x):
        out = self.last(self.body(x).tanh())
        return out, self.judge(out)
model = Net()
"""
        + STEP
        + """
    out, score = model(x)
    first, second = loss(out, y), -score.mean()
    last = getattr(model, "module", model).last.weight
    a, b = (torch.autograd.grad(v, last, retain_graph=True)[0] for v in (first, second))
    (first + (a.norm() / b.norm()).detach() * second).backward()
    optimizer.step()
""",
        [("loss/batch-coupled", True)],
    ),
    # The slope's length is held against the mean of the shard's.
    "path-lengths-against-their-mean": (
        _GENERATOR
        + STEP
        + """
    image, style = model(x)
    (slope,) = torch.autograd.grad((image * y).sum(), style, create_graph=True)
    lengths = slope.square().sum(1).sqrt()
    (lengths - 0.3 * lengths.mean()).square().mean().add(0 * image[0, 0]).backward()
    optimizer.step()
""",
        [("loss/batch-coupled", True)],
    ),
    # Of another loss beside, whose gradient at the outputs is right.
    "path-lengths-against-the-mean-of-the-own": (
        _GENERATOR
        + STEP
        + """
    image, style = model(x)
    (slope,) = torch.autograd.grad(image.sum(), style, create_graph=True)
    lengths = slope.square().sum(1).sqrt()
    penalty = (lengths - 0.9 * lengths.detach().mean()).square().mean()
    (nn.functional.mse_loss(image, y) + penalty).backward()
    optimizer.step()
""",
        [("loss/batch-coupled", True)],
    ),
    "path-lengths-over-those-that-are-long": (
        _GENERATOR
        + "batch = batch[0], torch.arange(8) > 2\n"
        + STEP
        + """
    image, style = model(x)
    (slope,) = torch.autograd.grad(image.sum(), style, create_graph=True)
    lengths = slope.square().sum(1)
    ((lengths * y).sum() / y.sum() + 0 * image[0, 0]).backward()
    optimizer.step()
""",
        [("loss/local-normalizer", True)],
    ),
    # The direction that moves the outputs most, of one length for the whole shard.
    "adversarial-direction-of-one-length": (
        _NET
        + "batch = (torch.randn(8, 4) * torch.linspace(0.2, 3, 8)[:, None]), batch[1]\n"
        + STEP
        + """
    direction = (0.1 * x).requires_grad_()
    own = model(x)
    moved = (model(x + direction) - own.detach()).square().sum(1).mean()
    (slope,) = torch.autograd.grad(moved, direction)
    worst = (model(x + slope / slope.norm()) - own.detach()).square().sum(1).mean()
    (nn.functional.cross_entropy(own, y) + worst).backward()
    optimizer.step()
""",
        [("forward/batch-coupled", True)],
    ),
    # A discriminator's term is weighed by gradients of the generator's last layer.
    "weight-of-a-term-by-gradients-of-the-last-layer": (
        """
class Pair(nn.Module):
    def __init__(self, made, judged):
        super().__init__()
        self.made, self.judged = made, judged
def model():
    torch.manual_seed(0)
    judged = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
    return Pair(nn.Linear(4, 4), judged)
def wrap(model):
    return Pair(DDP(model.made), DDP(model.judged))
batch = torch.randn(8, 4) * torch.linspace(0.2, 2, 8)[:, None], batch[1]
def bare(part):
    return getattr(part, "module", part)
"""
        + STEP
        + """
    made = model.made(x)
    near, real = (made - x).abs().mean(), -bare(model.judged)(made).mean()
    (a,), (b,) = (
        torch.autograd.grad(t, bare(model.made).weight, retain_graph=True)
        for t in (near, real)
    )
    for p in model.judged.parameters():
        p.requires_grad_(False)
    (near - a.norm() / b.norm() * bare(model.judged)(made).mean()).backward()
    for p in model.judged.parameters():
        p.requires_grad_(True)
    model.judged(x - made.detach()).square().mean().backward()
    optimizer.step()
""",
        [("loss/batch-coupled", True)],
    ),
    # What the weights are kept in differs, too: why it does says more.
    "weights-kept-by-slopes-of-the-own-samples": (
        """
class Balancer:
    weight = torch.ones(2)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.first, self.second = (nn.Linear(4, n) for n in (4, 1, 3))
        self.balancer = Balancer()
    def forward(self, x):
        hidden = self.body(x).tanh()
        return self.first(hidden)[:, 0], self.second(hidden)
def model():
    torch.manual_seed(0)
    return Net()
batch = torch.randn(8, 4) * torch.arange(1.0, 9)[:, None], torch.arange(8) % 3
def train_step(model, optimizer, batch):
    net = getattr(model, "module", model)
    optimizer.zero_grad()
    first, second = model(batch[0])
    losses = first.square().mean(), nn.functional.cross_entropy(second, batch[1])
    weight = net.balancer.weight.to(first)
    shared = net.body.weight
    slopes = [torch.autograd.grad(v, shared, retain_graph=True)[0] for v in losses]
    norms = torch.stack([slope.norm() for slope in slopes])
    net.balancer.weight = 2 * norms.flip(0) / norms.sum()
    (weight[0] * losses[0] + weight[1] * losses[1]).backward()
    optimizer.step()
""",
        [("ddp/autograd-grad", True)],
    ),
}

SOUND = {
    # The norms of gradients and weights are no numbers of samples.
    "path-lengths-against-the-mean-of-all": _GENERATOR
    + STEP
    + """
    image, style = model(x)
    (slope,) = torch.autograd.grad(image.sum(), style, create_graph=True)
    lengths = slope.square().sum(1).sqrt()
    mean = lengths.detach().mean()
    if dist.is_initialized():
        dist.all_reduce(mean)
        mean /= world()
    penalty = (lengths - 0.9 * mean).square().mean()
    (nn.functional.mse_loss(image, y) + penalty).backward()
    optimizer.step()
""",
}
