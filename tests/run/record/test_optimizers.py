"""What differs in optimizers and wrappers, each with near misses that are silent."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ddpcheck.checking import checking
from ddpcheck.ranks.pool import Pool
from ddpcheck.run.facts import HeldOtherwise
from ddpcheck.run.session.session import Session
from ddpcheck.run.spec import ReducedOver, RunSpec, StateApart, Unlike, result_of
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef
from tests.corpus.programs import programs
from tests.diagnose.head import HEAD

MODEL = """
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
"""
ALL = ("0.weight", "0.bias", "2.weight", "2.bias")


def unlike(pool: Pool, folder: Path, source: str) -> list[Unlike]:
    """Returns what the two ranks of a target say of their optimizers and wrappers."""
    path = folder / "target.py"
    path.write_text(HEAD + MODEL + source, encoding="utf-8")
    session = Session(pool, TargetRef(path=str(path)))
    spec = session.reference(RunSpec(mode="single")).spec
    assert spec is not None
    (outcome,) = session.run([spec.but(mode="ddp", world_size=2)])
    found = [result_of(rank) for rank in outcome.ranks]
    assert [(it.raised, it.problem) for it in found if it is not None] == [
        (None, None)
    ] * 2
    return [it.unlike for it in found if it is not None]


STEPS_WHEN_BUILT = """
def optimizer(params):
    made = torch.optim.Adam(params)
    if dist.is_initialized():
        held = made.param_groups[0]["params"]
        for p in held:
            p.grad = torch.zeros_like(p)
        made.step()
        made.zero_grad()
    return made
"""
COUNTERS_SET_BACK = STEPS_WHEN_BUILT.replace(
    "        made.zero_grad()\n",
    "        made.zero_grad()\n        for p in held: made.state[p]['step'].zero_()\n",
)
RESTORED = """
def optimizer(params):
    made = torch.optim.SGD(params, lr=0.1, momentum=0.9)
    for p in made.param_groups[0]["params"]:
        if RANKS:
            made.state[p]["momentum_buffer"] = torch.ones_like(p)
    return made
"""
# Ranks and shares of parameters; the others' are sent.
SHARES = """
def optimizer(params):
    params = list(params)
    return torch.optim.Adam(params[rank()::world()], lr=0.01)
def train_step(model, optimizer, batch):
    model.zero_grad()
    loss(model(batch[0]), batch[1]).backward()
    optimizer.step()
    if dist.is_initialized():
        for i, p in enumerate(model.parameters()):
            dist.broadcast(p.data, src=i % world())
"""
LARGE_STATE = """
model = nn.Linear(4, 300)
loss = lambda output, target: output.square().mean()
def optimizer(params):
    made = torch.optim.SGD(params, lr=0.1, momentum=0.9)
    for p in made.param_groups[0]["params"]:
        made.state[p]["momentum_buffer"] = torch.ones_like(p) * (1 + 1e-3 * rank())
    return made
"""


def test_counter_of_a_step_before_training_differs_before_the_first_update(
    pool: Pool, tmp_path: Path
) -> None:
    for rank in unlike(pool, tmp_path, STEPS_WHEN_BUILT):
        counter = StateApart(
            optimizer="Adam",
            key="step",
            names=ALL,
            count=4,
            rel_diff=math.inf,
            mine=1.0,
            only_on="rank",
        )
        assert rank.states[0] == counter
        # Moments follow once the weights differ.
        assert {(s.key, s.update, s.step) for s in rank.states[1:]} == {
            ("exp_avg", 2, 1),
            ("exp_avg_sq", 2, 1),
        }


@pytest.mark.parametrize(
    ("which", "ranks"),
    [("rank() == 1", [1]), ("world() > 1", [0, 1])],
    ids=["one", "all"],
)
def test_moments_restored_on_ranks_differ_before_the_first_update(
    which: str, ranks: list[int], pool: Pool, tmp_path: Path
) -> None:
    found = unlike(pool, tmp_path, RESTORED.replace("RANKS", which))
    for rank in ranks:
        (state,) = found[rank].states
        assert (state.optimizer, state.key, state.update) == (
            "SGD",
            "momentum_buffer",
            0,
        )
        assert (state.names, state.only_on) == (ALL, "rank")
    if ranks == [1]:  # rank 0 starts as one process, and goes on with equal weights
        assert all(state.update for state in found[0].states)


def test_small_difference_of_a_large_state_is_found_and_sized(
    pool: Pool, tmp_path: Path
) -> None:
    first, second = unlike(pool, tmp_path, LARGE_STATE)
    assert all(state.update for state in first.states)
    (state,) = second.states
    assert (state.names, state.count, state.update) == (("weight", "bias"), 2, 0)
    assert state.rel_diff == pytest.approx(1e-3 / 1.001)
    assert (state.mine, state.one, state.only_on) == (None, None, "")


@pytest.mark.parametrize(
    "source",
    [
        "def optimizer(params): return torch.optim.SGD(params, lr=0.1)",
        "def optimizer(params): return torch.optim.Adam(params, foreach=True)",
        "def optimizer(params): return torch.optim.Adam(params, fused=True)",
        "def optimizer(params):\n"
        "    params = list(params)\n"
        "    turn = world() > 1\n"
        "    return torch.optim.Adam(params[::-1] if turn else params)",
        RESTORED.replace("RANKS", "True"),
        COUNTERS_SET_BACK,
    ],
    ids=[
        "stateless",
        "foreach",
        "fused",
        "order",
        "restored-everywhere",
        "allocated-as-zeros",
    ],
)
def test_sound_optimizer_has_nothing_unlike(
    source: str, pool: Pool, tmp_path: Path
) -> None:
    assert unlike(pool, tmp_path, source) == [Unlike(), Unlike()]


LOSS_IN_STATE = """
def optimizer(params):
    return torch.optim.LBFGS(params, max_iter=2)
def train_step(model, optimizer, batch):
    def close():
        optimizer.zero_grad()
        value = loss(model(batch[0]), batch[1])
        value.backward()
        return value
    optimizer.step(close)
"""


def test_state_of_the_shard_is_noted_and_decides_nothing(
    pool: Pool, tmp_path: Path
) -> None:
    first, _ = unlike(pool, tmp_path, LOSS_IN_STATE)
    assert [(s.key, s.update, s.names) for s in first.states] == [
        ("prev_loss", 1, ("0.weight",))
    ]
    options = Options(world_sizes=(2,), modes=("ddp",))
    ref = TargetRef(path=str(tmp_path / "target.py"))
    report = checking.check(pool, ref, options)
    assert (report.verdict, report.warnings) == ("equivalent", ())


def test_share_of_the_state_is_no_difference_of_it(pool: Pool, tmp_path: Path) -> None:
    found = unlike(pool, tmp_path, SHARES)
    assert [rank.states for rank in found] == [(), ()]
    assert [rank.held for rank in found] == [
        HeldOtherwise(left_out=("0.bias", "2.bias")),
        HeldOtherwise(left_out=("0.weight", "2.weight")),
    ]


REPLACED = """
def optimizer(params):
    return torch.optim.SGD(params, lr=0.1)
def wrap(model):
    return DDP(model, find_unused_parameters=True)
def train_step(model, optimizer, batch):
    if REPLACES and not hasattr(model, "done"):
        model.done = True
        inner = getattr(model, "module", model)
        inner[0].bias = nn.Parameter(inner[0].bias.detach().clone())
    optimizer.zero_grad()
    loss(model(batch[0]), batch[1]).backward()
    optimizer.step()
"""


def test_tensor_that_the_model_no_longer_holds_is_outside(
    pool: Pool, tmp_path: Path
) -> None:
    bias = ("0.bias",)
    expected = HeldOtherwise(outside=bias, left_out=bias, unread=bias)
    found = unlike(pool, tmp_path, REPLACED.replace("REPLACES", "world() > 1"))
    assert [rank.held for rank in found] == [expected, expected]


def test_tensor_that_is_replaced_everywhere_is_not_unlike(
    pool: Pool, tmp_path: Path
) -> None:
    found = unlike(pool, tmp_path, REPLACED.replace("REPLACES", "True"))
    assert [rank.held for rank in found] == [None, None]


UPDATED_TWICE = """
def optimizer(params):
    params = list(params)
    made = torch.optim.SGD(params, lr=0.1)
    made.second = torch.optim.SGD(params[2:], lr=0.1) if TWO else None
    return made
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss(model(batch[0]), batch[1]).backward()
    optimizer.step()
    if optimizer.second:
        optimizer.second.step()
"""


def test_parameters_of_two_optimizers_are_held_twice(
    pool: Pool, tmp_path: Path
) -> None:
    expected = HeldOtherwise(twice=("2.weight", "2.bias"))
    found = unlike(pool, tmp_path, UPDATED_TWICE.replace("TWO", "world() > 1"))
    assert [rank.held for rank in found] == [expected, expected]
    found = unlike(pool, tmp_path, UPDATED_TWICE.replace("TWO", "True"))
    assert [rank.held for rank in found] == [None, None]


GROUPS = """
def wrap(model):
    groups = [dist.new_group(of) for of in RANKS]
    return DDP(model, process_group=groups[dist.get_rank() if len(groups) > 1 else 0])
"""


def test_wrapper_that_reduces_over_some_ranks_is_noted(
    pool: Pool, tmp_path: Path
) -> None:
    found = unlike(pool, tmp_path, GROUPS.replace("RANKS", "([0], [1])"))
    assert [rank.reduced_over for rank in found] == [
        (ReducedOver(ranks=(0,), names=ALL),),
        (ReducedOver(ranks=(1,), names=ALL),),
    ]


def test_group_that_torch_does_not_know_is_not_noted(
    pool: Pool, tmp_path: Path
) -> None:
    source = programs()["sound/process-group-of-its-own"].source
    path = tmp_path / "target.py"
    path.write_text(source, encoding="utf-8")
    options = Options(world_sizes=(2,), modes=("ddp",))
    report = checking.check(pool, TargetRef(path=str(path)), options)
    assert report.verdict == "equivalent"


def test_group_of_all_ranks_is_not_noted(pool: Pool, tmp_path: Path) -> None:
    found = unlike(pool, tmp_path, GROUPS.replace("RANKS", "([0, 1],)"))
    assert found == [Unlike(), Unlike()]


# The forward reads a copy of the weight, with a gradient of its own.
READS_A_COPY = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)
        self.copy = []
    def forward(self, x):
        if not self.copy:
            self.copy.append(self.second.weight.detach().clone().requires_grad_())
        weight = self.copy[0] if COPIES else self.second.weight
        return nn.functional.linear(self.first(x).tanh(), weight, self.second.bias)
model = Net()
def wrap(model):
    return DDP(model, find_unused_parameters=True)
"""


def test_copy_that_forward_reads_is_elsewhere_and_its_weight_unread(
    pool: Pool, tmp_path: Path
) -> None:
    expected = HeldOtherwise(
        elsewhere=("a tensor of shape (3, 5)",), unread=("second.weight",)
    )
    found = unlike(pool, tmp_path, READS_A_COPY.replace("COPIES", "world() > 1"))
    assert [rank.held for rank in found] == [expected, expected]


@pytest.mark.parametrize("copies", ["True", "False"])
def test_forward_that_reads_alike_everywhere_is_not_unlike(
    copies: str, pool: Pool, tmp_path: Path
) -> None:
    found = unlike(pool, tmp_path, READS_A_COPY.replace("COPIES", copies))
    assert found == [Unlike(), Unlike()]
