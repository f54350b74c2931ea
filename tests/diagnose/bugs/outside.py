"""Weights that are trained beside the model that is wrapped."""

from __future__ import annotations

from tests.diagnose.bugs.step import STEP

_CENTRES = """
class Centres(nn.Module):
    def __init__(self):
        super().__init__()
        start = torch.linspace(-1, 1, 9, dtype=torch.float64).view(3, 3)
        self.centres = nn.Parameter(start)
    def forward(self, x, y):
        return (x - self.centres[y]).square().sum(1).mean()
centres = Centres()
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
batch = torch.randn(16, 4), torch.arange(16) % 3
"""
_OWN = """
centres_optimizer = torch.optim.SGD(centres.parameters(), lr=0.5)
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    centres_optimizer.zero_grad()
    centres(model(batch[0]), batch[1]).backward()
"""
_STEPS = """
    optimizer.step()
    centres_optimizer.step()
"""

BUGS: dict[str, tuple[str, list[tuple[str, bool | None]]]] = {
    # A temperature that the third of three updates trains.
    "temperature-trained-beside-what-is-wrapped": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)
        self.log_scale = nn.Parameter(torch.zeros(()))
    def forward(self, x):
        return self.body(x)
model = Net()
def wrap(model):
    model.body = DDP(model.body)
    return model
def optimizer(params):
    return torch.optim.Adam(params, lr=0.01)
"""
        + STEP
        + """
    output = model(x)
    (nn.functional.cross_entropy(output, y) * model.log_scale.exp().detach()).backward()
    optimizer.step()
    optimizer.zero_grad()
    (model.log_scale * (output.detach().square().mean() - 0.3)).backward()
    optimizer.step()
""",
        [("ddp/wrapper-missing", True)],
    ),
    # A loss with weights: its tensors take no other's place.
    "centres-in-a-group-of-the-optimizer": (
        _CENTRES
        + """
def optimizer(params):
    mine = {"params": centres.parameters(), "lr": 0.5}
    return torch.optim.SGD([{"params": params}, mine], lr=0.1)
def loss(output, target):
    return centres(output, target)
""",
        [("ddp/wrapper-missing", True)],
    ),
    "centres-with-an-optimizer-in-a-global": (
        _CENTRES + _OWN + _STEPS,
        [("ddp/wrapper-missing", True)],
    ),
    "centres-with-an-optimizer-at-the-optimizer": (
        _CENTRES
        + """
def optimizer(params):
    made = torch.optim.Adam(params, lr=0.01)
    made.of_centres = torch.optim.SGD(centres.parameters(), lr=0.5)
    return made
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    optimizer.of_centres.zero_grad()
    centres(model(batch[0]), batch[1]).backward()
    optimizer.of_centres.step()
    optimizer.step()
""",
        [("ddp/wrapper-missing", True)],
    ),
    # Made in the first step, and kept where no optimizer is looked for.
    "centres-made-in-the-first-step": (
        _CENTRES
        + """
KEPT = {}
def train_step(model, optimizer, batch):
    if not hasattr(optimizer, "is_new"):
        optimizer.is_new = False
        KEPT["centres"] = Centres()
        KEPT["step"] = torch.optim.SGD(KEPT["centres"].parameters(), lr=0.5).step
    optimizer.zero_grad()
    KEPT["centres"].zero_grad()
    KEPT["centres"](model(batch[0]), batch[1]).backward()
    optimizer.step()
    KEPT["step"]()
""",
        [("ddp/wrapper-missing", True)],
    ),
    # Its gradient is small beside those of the rest: no sum of all of them shows it.
    "small-weight-beside-a-large-wrapped-part": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.token = nn.Linear(400, 3), nn.Parameter(torch.zeros(1))
    def forward(self, x):
        return self.body(x + 1e-6 * self.token)
model = Net()
batch = 100 * torch.randn(8, 400), torch.arange(8) % 3
def wrap(model):
    model.body = DDP(model.body)
    return model
""",
        [("ddp/wrapper-missing", True)],
    ),
    # Poses are in no DDP object, and the field is called past its own.
    "poses-beside-a-field-that-is-unwrapped": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.poses, self.field = nn.Embedding(3, 4), nn.Linear(4, 3)
    def forward(self, x):
        field = getattr(self.field, "module", self.field)
        return field(x + self.poses((x[:, 0] > 0).long()))
model = Net()
def wrap(model):
    model.field = DDP(model.field)
    return model
""",
        [("ddp/wrapper-missing", True), ("ddp/forward-bypassed", True)],
    ),
    "layers-that-ddp-is-told-to-ignore": (
        """
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
batch = torch.randn(8, 4), torch.arange(8) % 3
loss = nn.CrossEntropyLoss()
def wrap(model):
    names = [name for name, _ in model[0].named_parameters(prefix="0")]
    DDP._set_params_and_buffers_to_ignore_for_model(model, names)
    return DDP(model)
""",
        [("ddp/wrapper-missing", True)],
    ),
    # What training code has hung on the wrapper is there for probes, too.
    "count-reduced-over-a-group-that-hangs-on-the-wrapper": (
        """
model = nn.Linear(4, 3)
target = torch.tensor([0, -100, 2, -100, 1, 2, 0, -100])
batch = torch.randn(8, 4), target
def wrap(model):
    made = DDP(model)
    made.node = [dist.new_group([r]) for r in range(world())][rank()]
    return made
def train_step(model, optimizer, batch):
    count = (batch[1] != -100).sum()
    if isinstance(model, DDP):
        dist.all_reduce(count, group=model.node)
    optimizer.zero_grad()
    total = nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")
    (total / count).backward()
    optimizer.step()
""",
        [("loss/local-normalizer", True)],
    ),
}

SOUND = {
    "centres-averaged-by-hand": f"""{_CENTRES}{_OWN}
    if dist.is_initialized():
        dist.all_reduce(centres.centres.grad)
        centres.centres.grad /= world()
{_STEPS}""",
}
