"""Where no cause can be proven, the finding says where it starts and no more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddpcheck.diagnose import registry
from ddpcheck.diagnose.search import causes
from ddpcheck.ranks.pool import Pool
from ddpcheck.report.data import Finding, Start
from tests.corpus import programs
from tests.diagnose.head import HEAD
from tests.diagnose.test_rules import checked

pytestmark = pytest.mark.usefixtures("causes_alone")


@pytest.fixture
def without_their_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rule for process groups and for state: what evidence of them says is left."""
    named = {"ddp/process-group", "state/optimizer-state"}
    rules = tuple(rule for rule in registry.RULES if rule.SLUG not in named)
    monkeypatch.setattr(causes, "RULES", rules)


ASKS_FOR_ITS_RANK = """
class Shifted(nn.Module):
    def forward(self, x):
        return x + rank()
model = nn.Sequential(nn.Linear(4, 6), Shifted(), nn.Tanh(), nn.Linear(6, 3))
"""


def test_module_that_asks_for_its_rank_mixes_no_samples(
    pool: Pool, tmp_path: Path
) -> None:
    report = checked(pool, tmp_path, HEAD + ASKS_FOR_ITS_RANK)
    (finding,) = report.findings
    assert (finding.slug, finding.link) == ("unknown", "forward")
    expected = "the cause is unknown; it starts in the forward link, at 1"
    assert finding.summary == expected
    lines = (HEAD + ASKS_FOR_ITS_RANK).splitlines()
    line = 1 + lines.index("class Shifted(nn.Module):")
    assert finding.where is not None
    assert finding.where.endswith(f"target.py:{line}")


GROUPS_OF_ONE = """
model = nn.Linear(4, 3)
def wrap(model):
    own = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    return DDP(model, process_group=own[dist.get_rank()])
"""
STEPS_WHEN_BUILT = """
model = nn.Linear(4, 3)
def optimizer(params):
    made = torch.optim.Adam(params)
    if dist.is_initialized():
        for p in made.param_groups[0]["params"]:
            p.grad = torch.zeros_like(p)
        made.step()
    return made
"""


@pytest.mark.usefixtures("without_their_rules")
@pytest.mark.parametrize(
    ("source", "link", "definition"),
    [
        (GROUPS_OF_ONE, "reduce", "def wrap(model):"),
        (STEPS_WHEN_BUILT, "update", "def optimizer(params):"),
    ],
    ids=["reduce", "update"],
)
def test_unknown_cause_is_placed_where_its_link_is_written(
    source: str, link: str, definition: str, pool: Pool, tmp_path: Path
) -> None:
    report = checked(pool, tmp_path, HEAD + source)
    (finding,) = report.findings
    line = 1 + (HEAD + source).splitlines().index(definition)
    assert (finding.slug, finding.link) == ("unknown", link)
    assert finding.where is not None
    assert finding.where.endswith(f"target.py:{line}")


GRADIENTS_BY_HAND = """
model = nn.Linear(4, 3)
def train_step(model, optimizer, batch):
    own = getattr(model, "module", model)
    parameters = list(own.parameters())
    loss = own(batch[0]).square().mean()
    for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
        if dist.is_initialized():
            dist.all_reduce(gradient)
            gradient = gradient / dist.get_world_size() + 0.01 * p.detach().sign()
        p.grad = gradient
    optimizer.step()
"""


def test_loss_that_cannot_be_told_from_backward_is_not_ruled_out(
    pool: Pool, tmp_path: Path
) -> None:
    report = checked(pool, tmp_path, HEAD + GRADIENTS_BY_HAND)
    (finding,) = report.findings
    assert (finding.slug, finding.link) == ("unknown", "backward")
    assert finding.summary == (
        "the cause is unknown; it starts in the loss or backward link, in step 1"
    )
    assert "loss" not in [item.what for item in finding.ruled_out]


LOOKS_AT_HOOKS = """
class Shifted(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)
    def forward(self, x):
        hidden = self.first(x)
        if self.first._forward_hooks:
            raise TypeError("no hooks here")
        return self.second(hidden + rank())
model = Shifted()
"""


def test_why_nothing_could_be_judged_alone_is_told(pool: Pool, tmp_path: Path) -> None:
    report = checked(pool, tmp_path, HEAD + LOOKS_AT_HOOKS)
    (finding,) = report.findings
    assert finding.slug == "unknown"
    expected = "no link could be judged separately: TypeError: no hooks here"
    assert finding.facts[-1] == expected


def test_what_differs_first_is_told(pool: Pool, tmp_path: Path) -> None:
    source = programs.source("unknown/owned-parameters-not-shared")
    report = checked(pool, tmp_path, source)
    (finding,) = report.findings
    expected = "the cause is unknown; it starts in the update link, in step 1"
    assert (finding.link, finding.summary) == ("update", expected)
    assert finding.facts[0] == (
        "first to differ: weights in step 1, of 2.bias, 0.bias; the ranks differ"
    )


WEIGHED = """
model = nn.Linear(4, 3)
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss(model(batch[0]), batch[1]).backward()
    for p in model.parameters():
        p.grad.mul_(0.7 if world() > 1 else 1.0)
    optimizer.step()
"""


def test_factor_of_all_gradients_is_told(pool: Pool, tmp_path: Path) -> None:
    (finding,) = checked(pool, tmp_path, HEAD + WEIGHED).findings
    assert finding.slug == "unknown"
    line = (
        "all gradients that differ in the first step are 0.7 times the "
        "single-process ones"
    )
    assert line in finding.facts


def _ruled_out(finding: Finding) -> list[str]:
    """Returns what was ruled out, without the excess that rounding leaves."""
    lines = [f"{item.what}: {item.why}" for item in finding.ruled_out]
    return [re.sub(r"excess [0-9.]+e-\d+", "excess of rounding", li) for li in lines]


SOUND_FORWARD = (
    "forward: given the single-process inputs, every module returns the "
    "single-process rows (1 compared, relative difference at most 0)"
)
SOUND_LOSS = (
    "loss: its gradient at the single-process outputs is 2 times the single-process "
    "one on every rank, as DDP needs"
)


@pytest.mark.usefixtures("without_their_rules")
def test_state_before_the_first_update_is_where_it_starts(
    pool: Pool, tmp_path: Path
) -> None:
    (finding,) = checked(pool, tmp_path, HEAD + STEPS_WHEN_BUILT).findings
    assert finding.start == Start(
        text="Adam's state before the first update: step is 1 on all ranks, and the "
        "single-process run has none, for weight, bias",
        quantity="optimizer state",
        step=0,
        parameters=("weight", "bias"),
        optimizer="Adam",
        key="step",
    )
    assert _ruled_out(finding) == [
        "data: in 3 steps the ranks train on each of the batch's samples once",
        SOUND_FORWARD,
        SOUND_LOSS,
        "reduce: gradients averaged by hand instead of by the wrapper leave excess "
        "1.09e+06, and 1.09e+06 with it",
        "gradients: they are equal in step 1, in which weights differ first (excess of "
        "rounding)",
        "loss/regularizer-scale: its fix leaves excess 1.09e+06",
        "sync/control-desync: its fix leaves excess 1.09e+06",
    ]


RESTORED_ON_ONE = """
model = nn.Linear(4, 3)
def optimizer(params):
    made = torch.optim.SGD(params, lr=0.1, momentum=0.9)
    for p in made.param_groups[0]["params"]:
        made.state[p]["momentum_buffer"] = torch.full_like(p, 0.5 + 0.5 * (world() > 1))
    return made
"""


@pytest.mark.usefixtures("without_their_rules")
def test_state_of_another_value_is_where_it_starts(pool: Pool, tmp_path: Path) -> None:
    (finding,) = checked(pool, tmp_path, HEAD + RESTORED_ON_ONE).findings
    assert finding.start is not None
    assert finding.start.text == (
        "SGD's state before the first update: momentum_buffer differs on all ranks by "
        "0.5 relative, for weight, bias"
    )


def test_state_that_wrong_gradients_make_is_not_where_it_starts(
    pool: Pool, tmp_path: Path
) -> None:
    momentum = """
def optimizer(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)
"""
    (finding,) = checked(pool, tmp_path, HEAD + WEIGHED + momentum).findings
    assert finding.start is not None
    assert (finding.start.quantity, finding.start.step) == ("gradients", 0)
    assert finding.start.text == "step 1, gradients of weight, bias"
    assert not any("SGD" in fact for fact in finding.facts)


@pytest.mark.usefixtures("without_their_rules")
def test_group_of_a_wrapper_is_where_it_starts(pool: Pool, tmp_path: Path) -> None:
    (finding,) = checked(pool, tmp_path, HEAD + GROUPS_OF_ONE).findings
    assert finding.start == Start(
        text="the wrapper of weight, bias reduces within the groups of ranks (0), (1), "
        "not over all 2",
        quantity="gradients",
        step=0,
        parameters=("weight", "bias"),
        group=(0,),
    )
    assert _ruled_out(finding) == [
        "data: each rank trains on its shard of the batch",
        SOUND_FORWARD,
        SOUND_LOSS,
        "all but the reduction: with gradients averaged by hand instead of by the "
        "wrapper the runs are equal (excess of rounding)",
    ]


def test_module_is_where_it_starts(pool: Pool, tmp_path: Path) -> None:
    (finding,) = checked(pool, tmp_path, HEAD + ASKS_FOR_ITS_RANK).findings
    assert finding.start == Start(
        text="step 1, the output of 1", quantity="outputs", step=0, module="1"
    )


READS_A_COPY = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)
        self.copy = []
    def forward(self, x):
        if not self.copy:
            self.copy.append(self.second.weight.detach().clone().requires_grad_())
        weight = self.copy[0] if world() > 1 else self.second.weight
        return nn.functional.linear(self.first(x).tanh(), weight, self.second.bias)
model = Net()
def wrap(model):
    return DDP(model, find_unused_parameters=True)
"""


def test_weights_that_forward_does_not_read_are_named(
    pool: Pool, tmp_path: Path
) -> None:
    (finding,) = checked(pool, tmp_path, HEAD + READS_A_COPY).findings
    assert finding.slug == "unknown"
    assert finding.facts[1:3] == (
        "the loss depends on them, and neither the model nor an optimizer holds them: "
        "a tensor of shape (3, 5)",
        "updated by an optimizer, and no loss of step 1 depends on them: second.weight",
    )
