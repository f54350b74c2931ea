"""Each kind of fix makes a file that trains on ranks as in one process.

The interventions are given, and a script in plain torch judges; whether a search ends
with them, and the file is its proof, is asked of a few, as that takes a whole check.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ddpcheck.checking import checking
from ddpcheck.diagnose.fixed import draft
from ddpcheck.diagnose.fixed.draft import Facts
from ddpcheck.diagnose.fixed.kinds import choose
from ddpcheck.diagnose.proposal import Proposal
from ddpcheck.ranks.pool import Pool
from ddpcheck.run.intervention import (
    Intervention,
    SkipAllReduces,
    Substitute,
    Switch,
)
from ddpcheck.target.target import TargetRef
from tests.corpus.programs import programs
from tests.diagnose.fixed import judge

pytestmark = pytest.mark.usefixtures("no_script")
ROUNDING = 1e-12
SCHEDULE = Substitute(boundary="schedule")
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
        "sync/update-left-out-where-the-loss-is-large",
        (Switch.MEAN_OF_NUMBERS,),
    ),
    "loss-that-is-handed-on": (
        "sync/step-size-by-the-own-loss",
        (Switch.MEAN_OF_NUMBERS,),
    ),
    "first-rank-in-a-step": (
        "sync/momentum-restored-on-the-first-rank",
        (Switch.FIRST_RANK,),
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
CASES = AVERAGES | HOOKS | DECISIONS


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """Returns the worst difference of each file that a kind makes, best first."""
    folder = tmp_path_factory.mktemp("files")
    files: dict[str, list[str]] = {}
    for case, (name, fixes) in CASES.items():
        files[case] = []
        for number, text in enumerate(_texts(programs()[name].path, fixes)):
            path = folder / f"{case}-{number}.py"
            path.write_text(text, encoding="utf-8")
            files[case].append(str(path))
    paths = [path for listed in files.values() for path in listed]
    command = [sys.executable, judge.__file__, *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = iter(map(float, done.stdout.split()))
    worst = {path: max(next(found), next(found)) for path in paths}
    return {case: sorted(worst[p] for p in listed) for case, listed in files.items()}


def _texts(path: Path, fixes: Sequence[Intervention]) -> list[str]:
    source = path.read_text(encoding="utf-8")
    facts = Facts(
        has_wrap="\ndef wrap" in source,
        has_train_step="\ndef train_step" in source,
        idle=False,
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


@pytest.mark.parametrize("case", CASES)
def test_file_of_a_kind_trains_as_the_single_process(
    case: str, differences: dict[str, list[float]]
) -> None:
    assert differences[case][0] < ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, _ in CASES.values()])
def test_file_of_a_kind_is_the_proof_of_its_program(name: str, pool: Pool) -> None:
    program = programs()[name]
    ref = TargetRef(path=str(program.path))
    report = checking.check(pool, ref, program.options)
    proofs = [finding.fix and finding.fix.proof for finding in report.findings]
    assert proofs == ["file"] * len(program.findings)
