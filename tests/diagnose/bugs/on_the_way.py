"""Gradients that are changed between a backward and the optimizer, or on their way."""

from __future__ import annotations

CLIPS = """
class Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x
    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-0.01, 0.01)
"""

BUGS: dict[str, tuple[str, list[tuple[str, bool | None]]]] = {
    # Of a mean over the shard: W times what it is in one process, and so is clipped.
    "activation-with-a-hook-that-clamps": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
    def forward(self, x):
        h = self.body(x).tanh()
        if h.requires_grad:
            h.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
        return self.head(h)
model = Net()
""",
        [("sync/clip-before-reduce", True)],
    ),
    "autograd-function-that-clamps": (
        f"""{CLIPS}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
    def forward(self, x):
        return self.head(Clip.apply(self.body(x).tanh()))
model = Net()
""",
        [("sync/clip-before-reduce", True)],
    ),
    "module-with-a-hook-that-clamps": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.head.register_full_backward_hook(
            lambda module, given, _: tuple(g.clamp(-0.01, 0.01) for g in given))
    def forward(self, x):
        return self.head(self.body(x).tanh())
model = Net()
""",
        [("sync/clip-before-reduce", True)],
    ),
    # No function of torch's does it: each weight's gradient, by the weight's size.
    "clipped-by-hand-in-every-micro-batch": (
        """
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    for x, y in zip(batch[0].chunk(2), batch[1].chunk(2)):
        (nn.functional.cross_entropy(model(x), y) / 2).backward()
        for p in model.parameters():
            most = 0.05 * p.detach().norm()
            p.grad.mul_((most / p.grad.norm()).clamp(max=1))
    optimizer.step()
""",
        [("sync/clip-before-reduce", True)],
    ),
}

SOUND = {
    # What is linear commutes with the mean over ranks.
    "gradient-turned-round-and-halved-on-its-way": """
class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)
    @staticmethod
    def backward(ctx, grad):
        return -0.1 * grad
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
    def forward(self, x):
        h = Reverse.apply(self.body(x).tanh())
        if h.requires_grad:
            h.register_hook(lambda grad: grad / 2)
        return self.head(h)
model = Net()
""",
    "gradients-halved-between-micro-batches": """
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
batch = torch.randn(8, 2, 4), torch.arange(16).view(8, 2) % 3
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    for i in range(2):
        loss(model(batch[0][:, i]), batch[1][:, i]).backward()
        for p in model.parameters():
            p.grad.mul_(0.5)
    optimizer.step()
""",
}
