"""Which samples a loss couples: far apart, and on both sides of a shard's border."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ddpcheck.checking import checking
from ddpcheck.diagnose.probes import coupling
from ddpcheck.diagnose.probes.evidence import Couplings
from ddpcheck.ranks.pool import Pool
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef
from tests.diagnose.head import HEAD

pytestmark = pytest.mark.usefixtures("causes_alone")

# Rows 2i and 2i + 1 are a pair; a shard of 3 rows cuts one, and no half of the batch.
NEIGHBOURS = """
model = nn.Linear(4, 1)
batch = torch.randn(12, 4), torch.zeros(12)
def loss(output, target):
    r = output.squeeze(-1)
    return -nn.functional.logsigmoid(r[0::2] - r[1::2]).mean()
"""
# Rows i and i + 8 are a pair: in shards of even numbers both, or of odd ones.
STACKED = """
model = nn.Linear(4, 3)
batch = torch.randn(16, 4), torch.zeros(16)
def loss(output, target):
    first, second = output.chunk(2)
    return (first * second).sum(1).exp().mean()
"""


@pytest.mark.parametrize(
    ("source", "slug"),
    [(NEIGHBOURS, "loss/batch-coupled"), (STACKED, "data/batch-layout")],
    ids=["neighbours", "stacked"],
)
def test_coupling_is_seen_wherever_the_partner_is(
    source: str, slug: str, pool: Pool, tmp_path: Path
) -> None:
    path = tmp_path / "mymodel.py"
    path.write_text(HEAD + source, encoding="utf-8")
    options = Options(world_sizes=(4,), modes=("ddp",))
    report = checking.check(pool, TargetRef(path=str(path)), options)
    (finding,) = report.findings
    assert finding.slug == slug
    assert finding.fix is not None
    assert finding.fix.verified is True


CONTRASTED = """
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.zeros(8)
def loss(output, target):
    every = output
    if dist.is_initialized():
        every = torch.cat(dnn.all_gather(output))
    near = output @ {}.T
    return nn.functional.cross_entropy(near, torch.arange(len(output)))
"""
OFFSET = CONTRASTED.format("every").replace(
    "(output)))", "(output)) + rank() * len(output))"
)
UNUSED = (
    "collectives called in one step: 1; without a process group the ranks compute the "
    "same loss and gradients"
)


def test_gather_whose_result_is_not_used_is_named(pool: Pool, tmp_path: Path) -> None:
    path = tmp_path / "mymodel.py"
    path.write_text(HEAD + CONTRASTED.format("output"), encoding="utf-8")
    options = Options(world_sizes=(2,), modes=("ddp",))
    (finding,) = checking.check(pool, TargetRef(path=str(path)), options).findings
    assert (finding.slug, finding.facts[-1]) == ("loss/batch-coupled", UNUSED)
    assert finding.fix is not None
    ending = (
        "; what the ranks exchange now reaches no gradient; here "
        "`near = output @ output.T` at mymodel.py:24"
    )
    assert finding.fix.text.endswith(ending)
    path.write_text(HEAD + OFFSET, encoding="utf-8")
    ref = TargetRef(path=str(path))
    assert checking.check(pool, ref, options).verdict == "equivalent"


# A tenth of a Dice loss of the batch: others move a sample's gradient by 4e-4 of it.
PART_OF_DICE = """
model = nn.Sequential(nn.Conv1d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv1d(4, 3, 1))
shares = torch.arange(64) < torch.arange(8)[:, None] * 8
batch = torch.randn(8, 1, 64), torch.randint(0, 3, (8, 64)) * shares
def loss(output, target):
    prob = output.softmax(1)[:, 1:]
    hot = nn.functional.one_hot(target, 3).movedim(-1, 1)[:, 1:]
    both, either = (prob * hot).sum((0, 2)), (prob + hot).sum((0, 2))
    dice = (2 * both / either).mean()
    return nn.functional.cross_entropy(output, target) - 0.1 * dice
"""


def test_coupling_is_seen_below_the_noise_of_the_model(
    pool: Pool, tmp_path: Path
) -> None:
    path = tmp_path / "mymodel.py"
    path.write_text(HEAD + PART_OF_DICE, encoding="utf-8")
    # As where TF32 sets it: ten times that is more than the coupling.
    options = Options(
        world_sizes=(2,), modes=("ddp",), dtype="float32", tolerance=1.5e-4
    )
    (finding,) = checking.check(pool, TargetRef(path=str(path)), options).findings
    assert finding.slug == "loss/batch-coupled"
    assert finding.fix is not None
    assert finding.fix.verified is True


def _measured(loss: Callable[[Tensor], Tensor]) -> Couplings:
    """Returns the couplings of a loss at outputs (12, 3)."""
    outputs = torch.randn(12, 3, generator=torch.Generator().manual_seed(3))
    outputs[0] = torch.tensor([-5.0, 6.0, 7.0])

    def run(perturb: coupling.Perturb, _: object) -> coupling.Grads:
        leaf = perturb("out", 3 * outputs).detach().requires_grad_()
        loss(leaf).backward()
        return {(0, "out"): leaf.grad}

    batch = torch.zeros(12, 1)
    grads = run(lambda _, value: value, batch)
    return coupling.measure(run, grads, lambda _, __: (0, 1), batch, 2)


def _weighed(output: Tensor, weights: Tensor) -> Tensor:
    values = nn.functional.cross_entropy(output, output.argmax(1), reduction="none")
    return (values * weights).sum() / weights.sum()


def _sure(output: Tensor) -> Tensor:
    return (output.detach().softmax(1).amax(1) > 0.8).float()


@pytest.mark.parametrize(
    ("loss", "counts"),
    [
        (lambda o: _weighed(o, _sure(o)), True),
        (lambda o: _weighed(o, _sure(o)) + o.square().mean(), False),
        (lambda o: _weighed(o, torch.ones(12)), False),
        (lambda o: _weighed(o, o.detach().softmax(1).amax(1)), False),
        (lambda o: o.mean(0).square().sum(), False),
        # Copies of the first sample, the largest, leave none of the others.
        (lambda o: o.abs().flatten().topk(9).values.sum(), False),
        (lambda o: (o.argmax(1).bincount(minlength=3) * o.mean(0)).sum(), False),
    ],
    ids=[
        "a count",
        "beside another term",
        "of all",
        "smooth weights",
        "a mean",
        "a choice",
        "shares",
    ],
)
def test_count_of_what_outputs_decide_is_told_from_other_couplings(
    loss: Callable[[Tensor], Tensor],
    counts: bool,  # noqa: FBT001
) -> None:
    assert _measured(loss).count(1e-6) == counts


def test_couplings_that_average_out_over_many_outputs_are_no_count() -> None:
    # What monai's LogHausdorffDTLoss, log(1 + a mean), does to 3,456 outputs.
    def measured(slope: float) -> Couplings:
        key = "#0/output"
        return Couplings(
            nudged={key: 0.18},
            slope={key: slope},
            copied={key: 0.538},
            unscaled={key: 0},
        )

    assert not measured(7.3e-6).count(1e-6)
    assert measured(2e-8).count(1e-6)


def _contrast(output: Tensor, columns: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output @ columns.T, torch.arange(len(output)))


def _of_largest(output: Tensor, target: Tensor) -> Tensor:
    classes = target.argmax(1)
    weight = 1 / (1 + classes.bincount(minlength=3))
    return nn.functional.cross_entropy(output, classes, weight.to(output.dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("loss", "is_coupled"),
    [
        (lambda o, t: _contrast(o, nn.functional.normalize(t, dim=1)), True),
        (lambda o, t: _contrast(o, nn.functional.layer_norm(t, (3,))), True),
        (lambda o, t: (o * nn.functional.normalize(t, dim=1)).sum(), False),
        (lambda o, t: (o.square() * t.abs()).sum() / t.abs().sum(), False),
        (lambda o, t: (o * t.abs()).sum() / t.abs().sum() + o.square().sum(), False),
        (lambda o, t: (o.square() * (t > 0)).sum() / (t > 0).sum(), False),
        (_of_largest, False),
    ],
    ids=[
        "norm",
        "layer norm",
        "own norm",
        "weights",
        "beside",
        "count",
        "class weights",
    ],
)
def test_targets_of_others_couple_through_their_direction_alone(
    loss: Callable[[Tensor, Tensor], Tensor],
    is_coupled: bool,  # noqa: FBT001
    dtype: torch.dtype,
) -> None:
    generator = torch.Generator().manual_seed(3)
    outputs = torch.randn(12, 3, generator=generator).to(dtype)
    targets = torch.randn(12, 3, generator=generator).to(dtype)

    def run(perturb: coupling.Perturb, batch: Tensor) -> coupling.Grads:
        leaf = perturb("out", outputs).detach().requires_grad_()
        loss(leaf, batch).backward()
        return {(0, "out"): leaf.grad}

    grads = run(lambda _, value: value, targets)
    found = coupling.measure(run, grads, lambda *_: (0, 1), targets, 2)
    assert (found.targets["out"] > 1e-5) == is_coupled


TARGETS = torch.tensor([0, 2, 1, 1, 0, 2, 2, 2, 0, 1, 0, 0])
SEED = 7


def _ordered(
    loss: Callable[[Tensor, Tensor], Tensor], world_size: int = 2
) -> dict[str, float]:
    """Returns what another order of 12 samples changes."""
    outputs = torch.randn(12, 3, generator=torch.Generator().manual_seed(3))

    def run(perturb: coupling.Perturb, batch: Tensor) -> coupling.Grads:
        torch.manual_seed(SEED)
        leaf = perturb("out", outputs).detach().requires_grad_()
        loss(leaf, batch).backward()
        return {(0, "out"): leaf.grad}

    grads = run(lambda _, value: value, TARGETS)
    return coupling.measure_order(
        run, grads, lambda *_: (0, 1), TARGETS, world_size, SEED
    )


def test_direction_of_what_moves_by_rounding_alone_says_nothing() -> None:
    moved = {"a": torch.tensor([0.5, 0.25])}
    rounding = {"a": torch.tensor([0.0, 1e-17])}
    apart = coupling._orthogonal  # noqa: SLF001
    assert apart(moved, rounding, {"a": 2.0}) == {"a": 0.0}
    assert apart(moved, {"a": torch.tensor([0.0, 1.0])}, {"a": 2.0}) == {"a": 0.25}
    # In float32 1e-6 of a gradient is rounding, in float64 it is not.
    small = {"a": torch.tensor([0.0, 2e-6])}
    assert apart(moved, small, {"a": 2.0}) == {"a": 0.0}
    exact = {"a": small["a"].double()}
    assert apart({"a": moved["a"].double()}, exact, {"a": 2.0}) == {"a": 0.25}


def test_what_moves_by_rounding_alone_is_not_beside_a_factor() -> None:
    besides = coupling._residual_of_factor  # noqa: SLF001
    before = torch.tensor([1.0, 1.0, 1.0, 0.0])
    change = torch.tensor([1e-3, 1e-3, 1e-6, 0.0])
    assert besides(change, before) == pytest.approx(0.0, abs=1e-12)
    assert besides(change.double(), before.double()) == pytest.approx(0.666, abs=1e-3)


@pytest.mark.parametrize(
    ("loss", "is_ordered"),
    [
        (lambda o, t: nn.functional.cross_entropy(o, t.roll(1)), True),
        (lambda o, t: (o[1:] * o[:-1]).sum() + 0 * t.sum(), True),
        # What decides is the sample's own, and how many there are.
        (lambda o, t: nn.functional.cross_entropy(o, t, ignore_index=1), False),
        (lambda o, t: (o.std(0) * (t == 1).sum()).sum(), False),
        # Three samples belong together, and a block holds three.
        (lambda o, t: (o.view(4, 9).logsumexp(1) * t[::3]).sum() + o.sum(), False),
    ],
    ids=["neighbours' targets", "neighbours", "own targets", "counts", "groups"],
)
@pytest.mark.usefixtures("seeded", "same_generators")
def test_order_matters_to_what_knows_its_neighbours(
    loss: Callable[[Tensor, Tensor], Tensor],
    is_ordered: bool,  # noqa: FBT001
) -> None:
    (change,) = _ordered(loss).values()
    assert (change > 0.1) == is_ordered
    assert change < 1e-6 or is_ordered


@pytest.mark.usefixtures("seeded", "same_generators")
def test_nothing_is_told_of_draws_or_of_shards_without_halves() -> None:
    def noisy(o: Tensor, _: Tensor) -> Tensor:
        return (o * torch.randn(12, 1)).square().sum()

    def plain(o: Tensor, t: Tensor) -> Tensor:
        return nn.functional.cross_entropy(o, t.roll(1))

    assert _ordered(noisy) == {}
    assert _ordered(plain, world_size=4) == {}  # three samples each
    assert _ordered(plain, world_size=1) == {}
