"""Each kind of fix makes a file that trains on ranks as in one process.

The interventions are given, and a script in plain torch judges; whether a search ends
with them, and the file is its proof, is asked of a few, as that takes a whole check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ddpcheck.checking import checking
from ddpcheck.diagnose.fixed import draft
from ddpcheck.diagnose.fixed.draft import Facts
from ddpcheck.diagnose.fixed.kinds import choose
from ddpcheck.diagnose.proposal import Proposal
from ddpcheck.ranks.pool import Pool
from ddpcheck.run.intervention import (
    CountLoss,
    DrawGlobalBatch,
    GlobalModule,
    Intervention,
    ScaleGradients,
    ScaleLoss,
    ScaleTerms,
    SkipAllReduces,
    Substitute,
    Switch,
)
from ddpcheck.target.target import TargetRef
from tests.corpus.programs import programs
from tests.diagnose.head import HEAD, STEP

pytestmark = pytest.mark.usefixtures("no_script")
ROUNDING = 1e-12
TEACHER = "trainer.teacher.bias", "trainer.teacher.weight"
SCHEDULE = Substitute(boundary="schedule")
TURNED = """
class Net(nn.Linear):
    def forward(self, x):
        torch.manual_seed(5)
        return nn.functional.dropout(super().forward(x).T.contiguous().T, 0.4)
model = Net(4, 3)
loss = nn.functional.cross_entropy
"""
OWN_PART = f"""
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
def own(params):
    first, world = 0, 1
    if dist.is_initialized():
        first, world = dist.get_rank(), dist.get_world_size()
    return list(params)[first::world]
{STEP}
    nn.functional.cross_entropy(model(x), y).backward()
    norm = sum(p.grad.square().sum() for p in own(model.parameters())).sqrt()
    for p in model.parameters():
        p.grad *= 0.1 / norm
    optimizer.step()
"""
IN_TURN = """
model = nn.Linear(4, 1)
batch = torch.randn(8, 4), torch.randn(8)
def loss(output, target):
    pairs = target.reshape(2, -1)  # samples i and i + 4 of the batch
    return -(output[:, 0].tanh() * (pairs - pairs.mean(0)).flatten()).mean()
"""
IN_PARTS = f"""
from torch.utils.data import DataLoader, TensorDataset
model = nn.Linear(4, 1)
rows = torch.randn(24, 4, dtype=torch.float64)
world = lambda: dist.get_world_size() if dist.is_initialized() else 1
{STEP}
    for (rows_of_all,) in DataLoader(TensorDataset(rows), 8):
        optimizer.zero_grad()
        (model(rows_of_all).square().sum() * world() / 8).backward()
        optimizer.step()
"""
OWN_MEAN = """
from dataclasses import dataclass
del loss
@dataclass
class Output:
    loss: torch.Tensor
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(9, 4), nn.Linear(4, 9)
    def forward(self, ids, labels):
        logits = self.out(self.words(ids)).flatten(0, 1)
        loss = nn.functional.cross_entropy
        return Output(loss(logits, labels.flatten(), reduction="mean"))
model = Net()
ids = torch.arange(40).reshape(8, 5) % 9
kept = torch.arange(5) < torch.tensor([1, 1, 2, 1, 5, 4, 5, 5])[:, None]
batch = dict(ids=ids, labels=ids.roll(1, 1).masked_fill(~kept, -100))
"""
OWN_SUM = OWN_MEAN.replace('"mean"', '"sum"')
NOTHING: tuple[Intervention, ...] = ()
# Programs of the corpus by the kind of fix, and their interventions; none: gradients
# averaged by hand.
AVERAGES: dict[str, tuple[str, tuple[Intervention, ...]]] = {
    "after-backward": (
        "ddp/parameter-beside-networks-that-are-clipped-by-hand",
        NOTHING,
    ),
    "in-wrappers-inside": ("ddp/critic-judges-twice-before-it-learns", NOTHING),
    "of-another-optimizer": ("ddp/centres-with-an-optimizer-in-a-global", NOTHING),
    "without-a-step": ("ddp/centres-in-a-group-of-the-optimizer", NOTHING),
    "slopes": ("ddp/ascent-by-autograd-grad", (Switch.AVERAGED_AUTOGRAD_GRAD,)),
    "no-sync": (
        "sync/gradient-of-no-sync-that-moves-the-weights",
        (Switch.ALWAYS_SYNC,),
    ),
}
HOOKS: dict[str, tuple[str, tuple[Intervention, ...]]] = {
    "hooks-of-a-step": (
        "sync/hooks-registered-in-the-first-step",
        (Switch.PARAMETERS_UNHOOKED,),
    ),
    "hooks-of-a-model": (
        "sync/hooks-that-keep-rounding-small",
        (Switch.PARAMETERS_UNHOOKED,),
    ),
    "hooks-of-activations": (
        "sync/activation-with-a-hook-that-clamps",
        (Switch.ALL_UNHOOKED,),
    ),
    "hooks-of-modules": (
        "sync/module-with-a-hook-that-clamps",
        (Switch.ALL_UNHOOKED,),
    ),
    "late-hooks": (
        "ddp/update-by-copies-that-hooks-have-made",
        (Switch.HOOKS_AFTER_BACKWARD,),
    ),
    "clip-of-local-gradients": (
        "sync/clipped-within-no-sync-and-averaged-by-hand",
        (Switch.CLIPPED_AT_UPDATE,),
    ),
    "communication-hook": (
        "sync/hook-that-clips-before-it-averages",
        (Switch.COMM_HOOKS_ON_MEANS,),
    ),
    "norm-summed-in-a-step": (
        "sync/clipping-after-the-reduction-broken",
        (SkipAllReduces(),),
    ),
    "norm-summed-by-the-optimizer": (
        "sync/norms-of-an-optimizer-summed-in-one-table",
        (SkipAllReduces(),),
    ),
}
DECISIONS: dict[str, tuple[str, tuple[Intervention, ...]]] = {
    "numbers-that-are-read": (
        "sync/weight-of-a-penalty-by-the-own-loss",
        (Switch.MEAN_OF_NUMBERS,),
    ),
    "loss-that-is-handed-on": (
        "sync/step-size-by-the-own-loss",
        (Switch.MEAN_OF_NUMBERS,),
    ),
    "counts-that-a-loss-reads": (
        "sync/points-counted-where-a-rank-has-any",
        (Switch.SUM_OF_NUMBERS,),
    ),
    "first-rank-in-a-step": (
        "sync/momentum-restored-on-the-first-rank",
        (Switch.FIRST_RANK,),
    ),
    "what-rank-0-alone-does": (
        "sync/weights-rounded-for-a-log-of-the-first-rank",
        (Switch.SECOND_RANK,),
    ),
    "first-rank-in-a-model": (
        "graph/depth-by-dice-seeded-with-the-rank",
        (Switch.FIRST_RANK,),
    ),
    "first-rank-in-an-optimizer": (
        "sync/noise-of-the-optimizer-seeded-by-rank",
        (Switch.FIRST_RANK,),
    ),
    "rate-by-ranks": ("sync/rate-that-is-scaled-with-the-ranks", (SCHEDULE,)),
    "rate-by-own-loss": (
        "sync/learning-rate-of-the-next-epoch-by-the-own-loss",
        (SCHEDULE,),
    ),
}
FIRST_RANKS: dict[str, tuple[str, tuple[Intervention, ...]]] = {
    "weights-before-a-step": (
        "ddp/head-reset-in-the-first-step",
        (Switch.BROADCAST_BEFORE_STEP,),
    ),
    "weights-after-a-step": (
        "ddp/weights-bounded-on-the-first-rank",
        (Switch.BROADCAST_AFTER_STEP,),
    ),
    "average-of-the-first-rank": (
        "state/average-in-a-trainer-of-the-first-rank",
        (Substitute(boundary="beside", names=TEACHER),),
    ),
}
SAMPLES: dict[str, tuple[str, tuple[Intervention, ...]]] = {
    "state-of-a-step": (
        "state/centre-outside-ddp",
        (Substitute(boundary="state", names=("",)),),
    ),
    "state-of-a-forward": (
        "state/centre-of-the-shard-beside-stacked-views",
        (Substitute(boundary="state", names=("",)),),
    ),
    "rows-that-a-forward-keeps": (
        "state/queue-of-the-keys-of-the-shard",
        (Substitute(boundary="state", names=("",)),),
    ),
    "state-in-a-hook": (
        "norm/running-statistics-that-a-callback-writes",
        (Substitute(boundary="state", names=("1",)),),
    ),
    "state-in-a-criterion": (
        "state/centre-in-a-criterion",
        (Substitute(boundary="beside", names=("criterion.centre",)),),
    ),
    "state-that-is-read-at-once": (
        "state/prior-from-a-buffer-of-own-counts",
        (Substitute(boundary="writes", names=("",)),),
    ),
    "counts-in-forward": (
        "sync/counts-in-an-attribute",
        (Substitute(boundary="beside", names=("model.seen",)),),
    ),
    "draws-in-forward": (
        "rng/generator-of-its-own-in-forward",
        (DrawGlobalBatch(shapes=((8, 6),)),),
    ),
    "draws-of-some-shapes": (
        "data/memory-with-one-seed-on-all-ranks",
        (DrawGlobalBatch(shapes=((48, 4), (48,), (16,))),),
    ),
    "draws-by-rates": ("rng/counts-drawn-by-rates", (Switch.CONSTANT_DRAWS,)),
    "draws-seeded-by-rank": (
        "rng/points-drawn-by-seed-and-rank",
        (Switch.CONSTANT_DRAWS,),
    ),
    "draws-of-numpy": ("rng/mask-of-numpy-seeded-alike", (Switch.CONSTANT_DRAWS,)),
}
WRAPPERS: dict[str, tuple[str, tuple[Intervention, ...]]] = {
    "hook-of-a-module": (
        "forward/hook-that-centres-what-a-layer-is-given",
        (GlobalModule(name="2"),),
    ),
    "hook-of-the-model": (
        "forward/hook-that-standardises-what-the-model-is-given",
        (GlobalModule(),),
    ),
    "opaque-output": ("graph/dataclass-output-broken", (Switch.PLAIN_OUTPUT,)),
    "opaque-output-beside-unused": (
        "graph/distribution-as-output",
        (Switch.PLAIN_OUTPUT,),
    ),
    "unfrozen-in-turn": (
        "ddp/unfrozen-in-turn-where-unused-ones-are-looked-for",
        (Switch.REWRAP_TRAINABLE,),
    ),
    "join": ("sync/join-by-its-class", (Switch.JOIN_DIVIDES_BY_LEFT,)),
    "batch-by-rank": (
        "data/batch-that-looks-at-the-rank",
        (Switch.BATCH_WITHOUT_GROUP,),
    ),
}
ORDERS = Substitute(boundary="orders")
SHARDS: dict[str, tuple[str, tuple[Intervention, ...]]] = {
    "batches-by-budget": ("data/batches-by-budget", (Switch.EMPTY_BATCHES,)),
    "loader-in-turn": (
        "data/loader-without-its-sampler",
        (ORDERS, Switch.LOADER_STRIDES),
    ),
    "orders-of-a-sampler": ("data/whole-batches-in-orders-of-their-own", (ORDERS,)),
    "orders-of-numpy": ("data/numpy-shuffles-by-rank", (ORDERS,)),
}
SCALES: dict[str, tuple[str, tuple[Intervention, ...]]] = {
    "gradients-by-hand": (
        "sync/gradients-summed-by-hand",
        (ScaleGradients(factor=0.5),),
    ),
    "gradients-divided-twice": (
        "sync/gradients-summed-by-hand-and-divided-twice",
        (ScaleGradients(factor=2.0),),
    ),
    "behind-a-hook-that-sums": (
        "sync/hook-that-adds-up-what-it-has-added-up",
        (Switch.AVERAGED_AT_UPDATE, ScaleGradients(factor=2.0)),
    ),
    "terms-in-the-model": (
        "loss/sum-beside-a-prior-kept-by-the-model",
        (ScaleLoss(factor=2), ScaleTerms(factor=0.5)),
    ),
    "terms-in-the-loss": (
        "loss/penalty-beside-a-sum-that-a-hook-sums",
        (ScaleTerms(factor=0.5),),
    ),
}
CASES = (
    AVERAGES | HOOKS | DECISIONS | FIRST_RANKS | SAMPLES | WRAPPERS | SHARDS | SCALES
)


def _texts(case: str, path: Path, fixes: Sequence[Intervention]) -> list[str]:
    source = path.read_text(encoding="utf-8")
    facts = Facts(
        has_wrap="\ndef wrap" in source,
        has_train_step="\ndef train_step" in source,
        idle=case == "opaque-output-beside-unused",
        asks_group="dist.is_initialized" in source,
        source=source,
    )
    proposal = Proposal(
        slug="any",
        link="update",
        summary="",
        facts=(),
        fix="",
        fixes=tuple(fixes),
        by_hand=not fixes,
        local=("other[0]",) if "centres_optimizer" in source else (),
    )
    ref = TargetRef(path=str(path))
    drafts = list(choose.drafts([proposal], facts, 2))
    return [draft.write(each, ref, facts, ["any"]).text for each in drafts]


# The first of each family, and where a file has to find its way around in forward.
QUICK = (
    "after-backward",
    "hooks-of-a-model",
    "numbers-that-are-read",
    "counts-that-a-loss-reads",
    "first-rank-in-a-model",
    "weights-before-a-step",
    "state-of-a-forward",
    "draws-in-forward",
    "opaque-output-beside-unused",
    "gradients-by-hand",
    "terms-in-the-loss",
)
MARKED = [
    pytest.param(case, marks=[] if case in QUICK else [pytest.mark.slow])
    for case in CASES
]


@pytest.mark.parametrize("case", MARKED)
def test_file_of_a_kind_trains_as_the_single_process(
    case: str, tmp_path: Path, differences: Callable[[Path], list[float]]
) -> None:
    name, fixes = CASES[case]
    worst = []
    for number, text in enumerate(_texts(case, programs()[name].path, fixes)):
        path = tmp_path / f"fixed{number}.py"
        path.write_text(text, encoding="utf-8")
        worst.append(max(differences(path)))
        if worst[-1] < ROUNDING:
            return
    pytest.fail(f"no file trains as the single process: {worst}")


def test_attempts_that_make_one_file_are_one_draft() -> None:
    path = programs()["sync/points-counted-where-a-rank-has-any"].path
    assert len(_texts("any", path, (Switch.SUM_OF_NUMBERS,))) == 1


@pytest.mark.parametrize(
    ("source", "fix"),
    [
        (TURNED, DrawGlobalBatch()),
        (OWN_PART, Switch.GRADIENTS_AS_LEFT),
        (IN_TURN, Switch.STRIDED_SHARDS),
        (IN_PARTS, Switch.LOADER_PARTS),
        (OWN_MEAN, CountLoss(countable="batch.labels != -100")),
        (OWN_SUM, ScaleLoss(factor=2)),
    ],
    ids=[
        "draws-in-another-order",
        "norm-of-the-own-part",
        "batch-in-turn",
        "loader-in-parts",
        "mean-by-the-model",
        "sum-by-the-model",
    ],
)
def test_file_of_a_source_trains_as_the_single_process(
    source: str,
    fix: Intervention,
    tmp_path: Path,
    differences: Callable[[Path], list[float]],
) -> None:
    target, fixed = tmp_path / "target.py", tmp_path / "fixed.py"
    target.write_text(HEAD + source, encoding="utf-8")
    text, *_ = _texts("of a source", target, (fix,))
    fixed.write_text(text, encoding="utf-8")
    assert max(differences(fixed)) < ROUNDING


RANK = "def rank():\n    return dist.get_rank() if dist.is_initialized() else 0\n"
IS_FIRST = "def is_first():\n    return not dist.is_initialized() or {}\n"


@pytest.mark.parametrize(
    ("function", "place"),
    [
        (RANK, 'original, "rank"'),
        (IS_FIRST.format("dist.get_rank() == 0"), 'dist, "get_rank"'),
        (IS_FIRST.format("not dist.get_rank()"), 'dist, "get_rank"'),
        (IS_FIRST.format("dist.get_rank() < 1"), 'dist, "get_rank"'),
    ],
    ids=["rank", "compared", "negated", "less"],
)
def test_function_of_the_rank_returns_0_only_where_it_returns_the_rank(
    function: str, place: str, tmp_path: Path
) -> None:
    target = tmp_path / "target.py"
    target.write_text(f"{function}\n\ndef train_step(m, o, b): ...\n")
    text, *_ = _texts("of a source", target, (Switch.FIRST_RANK,))
    assert f"with mock.patch.object({place}, lambda *_: 0):" in text


# A check of its file, whose ranks train alike in plain torch, does not end equal.
UNPROVEN = "sync/learning-rate-of-the-next-epoch-by-the-own-loss"
PROVEN = [name for name, _ in CASES.values() if name != UNPROVEN]


@pytest.mark.slow
@pytest.mark.parametrize("name", PROVEN)
def test_file_of_a_kind_is_the_proof_of_its_program(name: str, pool: Pool) -> None:
    program = programs()[name]
    ref = TargetRef(path=str(program.path))
    report = checking.check(pool, ref, program.options)
    proofs = [finding.fix and finding.fix.proof for finding in report.findings]
    assert proofs == ["file"] * len(program.findings)
