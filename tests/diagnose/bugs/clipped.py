"""Bugs of steps that clip their gradients, or update several times."""

from __future__ import annotations

from tests.diagnose.bugs.step import STEP

_NET = "model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))"
_HEAT = "self.heat = nn.Parameter(torch.tensor(-1.0))"
# It clips by hand: no function of torch's says so.
_AGENT = """
class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)
        OF_ACTOR
    def forward(self, x):
        return RETURNS
class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = Actor(), nn.Linear(7, 2)
        OF_AGENT
model = Agent()
weight = torch.tensor([1.0, 3.0, 2.0, 0.5, 4.0, 1.0, 2.5, 3.5])
batch = torch.randn(8, 4) * torch.linspace(0.3, 2, 8)[:, None], weight
def wrap(agent):
    agent.actor, agent.critic = DDP(agent.actor), DDP(agent.critic)
    return agent
def clip(parameters):
    found = [p for p in parameters if p.grad is not None]
    size = sum(p.grad.square().sum() for p in found).sqrt()
    for p in found:
        p.grad.mul_((0.05 / (size + 1e-6)).clamp(max=1))
def train_step(agent, optimizer, batch):
    x, weight = batch
    with torch.no_grad():
        act, heat = CALL
        back = x.mean(1) - heat.exp() * act.square().sum(1)
    optimizer.zero_grad()
    first, second = agent.critic(torch.cat([x, act], 1)).unbind(1)
    FIT
    clip(agent.parameters())
    optimizer.step()
    optimizer.zero_grad()
    act, heat = CALL
    agent.critic.requires_grad_(False)
    inner = getattr(agent.critic, "module", agent.critic)
    gain = inner(torch.cat([x, act], 1)).amin(1).mean()
    agent.critic.requires_grad_(True)
    cost = act.square().sum(1)
    cost, heated = heat.detach().exp() * cost.mean(), heat * (cost.detach() - 4).mean()
    (cost - gain + heated).backward()
    clip(agent.parameters())
    optimizer.step()
"""
_OF_ACTOR = (
    _AGENT.replace("OF_ACTOR", _HEAT)
    .replace("OF_AGENT", "")
    .replace("RETURNS", "self.body(x).tanh(), self.heat")
    .replace("CALL", "agent.actor(x)")
)
_OF_AGENT = (
    _AGENT.replace("OF_AGENT", _HEAT)
    .replace("OF_ACTOR", "")
    .replace("RETURNS", "self.body(x).tanh(), x.sum(1)")
    .replace("CALL", "agent.actor(x)[0], agent.heat")
)
_FIT = """own = WEIGHT
    one, two = ((own * (q - back) ** 2).mean() for q in (first, second))
    (one + two).backward()"""
# What a rank sees of its own samples decides on the learning rate of the next epoch.
_EPOCHS = (
    _NET
    + """
batch = torch.randn(8, 4) * torch.linspace(0.2, 3, 8)[:, None], torch.arange(8) % 3
optimizer = lambda params: torch.optim.Adam(params, lr=0.05, eps=1e-3)
def train_step(model, optimizer, batch):
    x, y = batch
    for _ in range(3):
        value = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        seen = value.detach().clone()
        OVER_RANKS
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * float(seen)
"""
)
_MEAN = """if dist.is_initialized():
            dist.all_reduce(seen)
        seen /= world()"""

BUGS: dict[str, tuple[str, list[tuple[str, bool | None]]]] = {
    # Of both, the batch and the batch taken twice, the clipped gradient has one size.
    "sum-whose-gradient-is-clipped": (
        _NET
        + STEP
        + """
    nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    optimizer.step()
""",
        [("loss/sum-reduction", True)],
    ),
    # The only gradient that is left where outputs are cut is clipped with the marks.
    "parameter-beside-networks-that-are-clipped-by-hand": (
        _OF_AGENT.replace("FIT", _FIT).replace("WEIGHT", "torch.ones(8 // world())"),
        [("ddp/wrapper-missing", True)],
    ),
    "maximum-of-the-shard-beside-a-parameter-that-is-returned": (
        _OF_ACTOR.replace("FIT", _FIT).replace("WEIGHT", "weight / weight.max()"),
        [("loss/local-normalizer", True)],
    ),
    # A forward without gradient waits for no backward.
    "two-backwards-behind-a-forward-without-gradient": (
        _OF_ACTOR.replace(
            "FIT",
            "(first - back).square().mean().backward(retain_graph=True)\n"
            "    (second - back).square().mean().backward()",
        ),
        [("ddp/multi-backward", True)],
    ),
    "learning-rate-of-the-next-epoch-by-the-own-loss": (
        _EPOCHS.replace("OVER_RANKS", ""),
        [("sync/control-desync", True)],
    ),
}
SOUND = {
    "learning-rate-of-the-next-epoch-by-all-ranks-loss": _EPOCHS.replace(
        "OVER_RANKS", _MEAN
    ),
}
