"""Which gradients of a training step are judged: those that an update takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.ranks.pool import Pool
from tests.checking.test_unusual_targets import check

pytestmark = pytest.mark.corpus

# Two parts, each with its own wrapper and optimizer.
TWO_PARTS = """
from torch.nn.parallel import DistributedDataParallel as DDP
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Linear(4, 4)
        self.critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
OWN = {}
def model():
    torch.manual_seed(0)
    return Net()
def optimizer(params):
    params = list(params)
    OWN["critic"] = torch.optim.SGD(params[2:], lr=LR)
    OWN["actor"] = torch.optim.SGD(params[:2], lr=LR)
    return OWN["actor"]
"""
# The actor's step leaves gradients of the rank's own in the critic, which go unused.
CRITIC = (
    TWO_PARTS.replace("LR", "0.1")
    + """
def wrap(model):
    model.actor, model.critic = DDP(model.actor), DDP(model.critic)
    return model
def train_step(model, optimizer, batch):
    x, target = batch
    value = loss(model.critic(x), target)
    OWN["critic"].zero_grad()
    value.backward()
    OWN["critic"].step()
    value = loss(getattr(model.critic, "module", model.critic)(model.actor(x)), target)
    OWN["actor"].zero_grad()
    value.backward()
    OWN["actor"].step()
"""
)
# A temperature that the loss uses, trained by a separate optimizer.
TEMPERATURE = """
model = nn.Linear(4, 3)
LOG = []
def optimizer(params):
    LOG[:] = [torch.zeros((), requires_grad=True)]
    given = torch.optim.SGD(params, lr=0.1)
    given.of_log = torch.optim.SGD(LOG, lr=0.1)
    return given
def train_step(model, optimizer, batch):
    (log,) = LOG
    optimizer.zero_grad()
    (log.exp() * loss(model(batch[0]), batch[1])).backward()
    optimizer.step()
    optimizer.of_log.zero_grad()
    (log * batch[0].square().mean()).backward()
    if dist.is_initialized() and AVERAGES:
        dist.all_reduce(log.grad)
        log.grad /= world()
    optimizer.of_log.step()
"""
ACCUMULATION = """
import contextlib
CALLS = [0]
def model():
    CALLS[0] = 0
    torch.manual_seed(0)
    return nn.Linear(4, 3)
def train_step(model, optimizer, batch):
    CALLS[0] += 1
    is_last = CALLS[0] % PERIOD == 0
    is_kept = hasattr(model, "no_sync") and not is_last
    with model.no_sync() if is_kept else contextlib.nullcontext():
        loss(model(batch[0]), batch[1]).backward()
    if is_last:
        optimizer.step()
        optimizer.zero_grad()
"""
BY_HAND = "wrap = lambda model: model" + ACCUMULATION.replace(
    "        optimizer.step()",
    """        for p in model.parameters() if dist.is_initialized() else ():
            dist.all_reduce(p.grad)
            p.grad /= world()
        optimizer.step()""",
)
# Ranks step with local gradients, which the optimizer's step averages.
REDUCING = """
wrap = lambda model: model
model = nn.Linear(4, 3)
class Reducing(torch.optim.SGD):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                grad = p.grad.clone()
                if dist.is_initialized():
                    dist.all_reduce(grad)
                    grad /= world()
                p -= 0.1 * grad
optimizer = lambda params: Reducing(params, lr=0.1)
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss(model(batch[0]), batch[1]).backward()
    optimizer.step()
"""
# Two optimizers, and all weights averaged behind both.
LOCAL_SGD = (
    TWO_PARTS.replace("LR", "0.1")
    + """
wrap = lambda model: model
def train_step(model, optimizer, batch):
    model.zero_grad()
    loss(model.critic(model.actor(batch[0])), batch[1]).backward()
    OWN["critic"].step()
    OWN["actor"].step()
    if dist.is_initialized():
        for p in model.parameters():
            dist.all_reduce(p.data)
            p.data /= world()
"""
)
# An optimizer that calls none of torch's hooks.
UNKNOWN = """
model = nn.Linear(4, 3)
class Plain:
    def __init__(self, params):
        self.params = list(params)
        self.param_groups = [{"params": self.params}]
    def zero_grad(self):
        for p in self.params:
            p.grad = None
    def step(self):
        for p in self.params:
            p.data -= 0.1 * p.grad.sign() * 1e-3
optimizer = Plain
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    output = model(batch[0])
    nn.functional.cross_entropy(output, batch[1], reduction=REDUCTION).backward()
    optimizer.step()
"""
# Not in any optimizer: its gradient is right but unused.
LEFT_OUT = """
model = nn.Linear(4, 3)
optimizer = lambda params: torch.optim.SGD(list(params)[:1], lr=0.1)
"""

_NO_UPDATE = "no optimizer step in this step"
RIGHT: dict[str, tuple[str, dict[str, str]]] = {
    "critic-past-its-wrapper": (CRITIC, {}),
    "temperature-with-two-losses": (TEMPERATURE.replace("AVERAGES", "True"), {}),
    "update-in-every-second-step": (
        ACCUMULATION.replace("PERIOD", "2"),
        {"gradients of step 1, 3": _NO_UPDATE},
    ),
    "averages-by-hand-in-every-second-step": (
        BY_HAND.replace("PERIOD", "2"),
        {"gradients of step 1, 3": _NO_UPDATE},
    ),
    "optimizer-that-reduces": (
        REDUCING,
        {
            "gradients of ddp at world size 2": "each rank's own when the optimizer "
            "steps; the ranks share their weights after it, and these equal the "
            "single-process weights after every step"
        },
    ),
    "two-optimizers-and-shared-weights": (
        LOCAL_SGD,
        {
            "gradients of ddp at world size 2": "each rank's own when the optimizer "
            "steps; the ranks share their weights after it, and these equal the "
            "single-process weights after every step"
        },
    ),
    "optimizer-of-no-class-of-torch": (UNKNOWN.replace("REDUCTION", "'mean'"), {}),
    "parameter-that-no-optimizer-holds": (
        LEFT_OUT,
        {"gradients of bias": "no optimizer step takes them"},
    ),
}


@pytest.mark.parametrize("name", list(RIGHT))
def test_gradients_that_no_update_takes_are_not_judged(
    name: str, pool: Pool, tmp_path: Path
) -> None:
    source, not_compared = RIGHT[name]
    report = check(pool, tmp_path, source)
    assert (report.verdict, report.findings) == ("equivalent", ())
    assert {n.what: n.why for n in report.not_compared} == not_compared


# Uses only signs: gradients of other sizes move the weights equally.
_SIGNS = """
class Signs(torch.optim.SGD):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p -= 1e-3 * p.grad.sign()
optimizer = lambda params: Signs(params, lr=1e-3)
"""
WRONG = {
    "count-of-the-rank-behind-an-optimizer-of-signs": _SIGNS
    + """
model = nn.Linear(4, 3)
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss(model(batch[0]), batch[1]).backward()
    count = 1 + (batch[1] == 0).sum()
    for p in model.parameters():
        p.grad /= count
    optimizer.step()
""",
    "sums-behind-an-unknown-optimizer-of-signs": UNKNOWN.replace("REDUCTION", "'sum'"),
    # Only computes gradients, on purpose.
    "sums-that-no-step-uses": """
model = nn.Linear(4, 3)
def train_step(model, optimizer, batch):
    model.zero_grad()
    output = model(batch[0])
    nn.functional.cross_entropy(output, batch[1], reduction="sum").backward()
""",
    "temperature-of-the-rank": TEMPERATURE.replace("AVERAGES", "False"),
    # The last backward is within no_sync, and the update uses its gradients.
    "update-by-what-no-sync-left": ACCUMULATION.replace("PERIOD", "2").replace(
        "and not is_last", "and is_last"
    ),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_wrong_gradients_of_an_update_are_divergent(
    name: str, pool: Pool, tmp_path: Path
) -> None:
    report = check(pool, tmp_path, WRONG[name])
    assert report.verdict == "divergent"
    assert report.runs[0].gradients.mismatched


def test_steps_without_any_update_are_not_checked(pool: Pool, tmp_path: Path) -> None:
    report = check(pool, tmp_path, ACCUMULATION.replace("PERIOD", "4"))
    (run,) = report.runs
    assert (report.verdict, report.exit_code) == ("not-checked", 3)
    assert run.why == "no optimizer step in 3 steps: --steps"
