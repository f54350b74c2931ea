"""Accepted findings; unused acceptances; reports of checks that end early."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest

from ddpcheck.checking import baseline, plan, reporting
from ddpcheck.checking.plan import Plan
from ddpcheck.checking.reporting import Made, judged_early
from ddpcheck.ranks.pool import Pool
from ddpcheck.report import data as report
from ddpcheck.report.data import Fault, Finding, Run
from ddpcheck.report.progress import Silent, about
from ddpcheck.run.facts import ReferenceFacts
from ddpcheck.run.session.session import Session, expected_s
from ddpcheck.run.spec import ReferenceResult, RunOutcome, RunSpec
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef
from tests.end_to_end.wrong_files import target
from tests.report.render import sample

RUN = Run(mode="ddp", world_size=2, verdict="divergent")
FOUND = Finding(
    slug="loss/sum-reduction", link="loss", runs=(0,), proven_runs=(0,), summary="s"
)


def test_accepted_finding_has_the_reason() -> None:
    reasons = {"loss/sum-reduction": "by design"}
    marked, warnings = reporting.accept([RUN], [FOUND], reasons)
    assert [f.accepted for f in marked] == ["by design"]
    assert warnings == []


def test_acceptance_without_a_proof_is_a_warning() -> None:
    found = dataclasses.replace(FOUND, proven_runs=())
    reasons = {"loss/sum-reduction": "by design"}
    marked, warnings = reporting.accept([RUN], [found], reasons)
    assert [f.accepted for f in marked] == ["by design"]
    assert warnings == [
        "accepted without a proof: loss/sum-reduction in ddp W=2; no run with its fix "
        "shows that nothing else differs there"
    ]


def test_acceptance_of_what_is_not_found_is_a_warning() -> None:
    marked, warnings = reporting.accept([RUN], [FOUND], {"loss/batch-coupled": "why"})
    assert [f.accepted for f in marked] == [None]
    assert warnings == [
        "accept: loss/batch-coupled was accepted but not found: what differs is "
        "loss/sum-reduction in ddp W=2"
    ]
    _, warnings = reporting.accept([RUN], [], {"loss/batch-coupled": "why"})
    assert warnings == [
        "accept: loss/batch-coupled was accepted but not found: no cause was found"
    ]
    equal = dataclasses.replace(RUN, verdict="equivalent")
    _, warnings = reporting.accept([equal], [], {"loss/batch-coupled": "why"})
    assert warnings == [
        "accept: loss/batch-coupled was accepted but not found: no run differs"
    ]


def test_acceptance_that_leaves_out_a_run_is_a_warning() -> None:
    fault = Fault(kind="raised", rank=1, step=0, summary="KeyError: 'x'")
    worse = dataclasses.replace(RUN, world_size=4, faults=(fault,))
    found = dataclasses.replace(FOUND, runs=(0, 1), proven_runs=(0, 1))
    _, warnings = reporting.accept([RUN, worse], [found], {FOUND.slug: "why"})
    assert warnings == [
        "accept: loss/sum-reduction is not accepted in ddp W=4: rank 1 raised: "
        "KeyError: 'x', which loss/sum-reduction does not cover"
    ]


@pytest.mark.parametrize(
    ("facts", "warned"),
    [
        ({}, True),
        ({"nothing": "the single-process run changes no weight in 3 steps"}, False),
        ({"never_updates": True}, False),
    ],
    ids=["trains", "stands-still", "never-updates"],
)
def test_idle_parameters_are_no_warning_where_nothing_is_judged(
    facts: ReferenceFacts, *, warned: bool
) -> None:
    idle: ReferenceFacts = {"idle": ["bias"], "unused": ["bias"], "has_wrap": False}
    base = ReferenceResult(facts={**idle, **facts})
    found = reporting.warnings_of(base, plan.Plan(), [])
    assert [w.startswith("1 parameters get no gradient") for w in found] == (
        [True] * warned
    )


class _Lines(Silent):
    """Keeps what is announced."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def announce(self, text: str) -> None:
        """Keeps the line."""
        self.lines.append(text)


def _ddp(world_size: int, mode: str = "ddp") -> RunSpec:
    return RunSpec(mode=mode, world_size=world_size)


def _made(
    specs: list[RunSpec], seconds: float, options: Options
) -> tuple[Made, _Lines]:
    progress = _Lines()
    session: Any = None
    made = Made(session, options, time.perf_counter(), progress)
    base = ReferenceResult(spec=_ddp(1, "single"), seconds=seconds)
    made.expect(base, Plan(specs=specs))
    return made, progress


@pytest.mark.parametrize(
    ("specs", "options", "shorter"),
    [
        (
            [_ddp(2, "dp"), _ddp(2), _ddp(8)],
            Options(),
            "--world-sizes 2, --modes ddp, --no-fix, a smaller batch",
        ),
        ([_ddp(2)], Options(fix=False), "a smaller batch"),
    ],
    ids=["matrix", "one-run"],
)
def test_long_check_announces_its_duration_and_what_makes_it_shorter(
    specs: list[RunSpec], options: Options, shorter: str
) -> None:
    _, progress = _made(specs, 600.0, options)
    (line,) = progress.lines
    assert line.startswith("1 run takes" if len(specs) == 1 else "3 runs take")
    assert (
        "(the single-process run took 600 s); finding a cause takes longer; to make it "
        "shorter: "
    ) in line
    assert line.endswith(f"shorter: {shorter}")


def test_long_check_that_the_deadline_will_end_says_so() -> None:
    _, progress = _made([_ddp(2)], 600.0, Options(deadline_s=90.0))
    (line,) = progress.lines
    took = "(the single-process run took 600 s)"
    assert f"{took}, more than --deadline-s 90; finding a cause" in line


def test_short_check_announces_nothing() -> None:
    _, progress = _made([_ddp(2), _ddp(4)], 0.5, Options())
    assert progress.lines == []


def test_rest_takes_as_long_as_what_was_made() -> None:
    made, _ = _made([_ddp(2), _ddp(2, "dp")], 10.0, Options())
    assert made.base is not None
    made.began -= 5 * expected_s(_ddp(2), made.base)
    made.ran(RunOutcome(spec=_ddp(2), reference=made.base))
    left_s = made.left_s()
    assert left_s == pytest.approx(5 * expected_s(_ddp(2, "dp"), made.base), rel=0.1)


def test_simulated_ranks_take_turns() -> None:
    base = ReferenceResult(spec=_ddp(1, "single"), seconds=2.0)
    assert expected_s(_ddp(255, "sim"), base) == 256.0


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.0, "about 1 s"), (59.0, "about 59 s"), (60.5, "about 2 min")],
)
def test_times_are_rounded_up(seconds: float, expected: str) -> None:
    assert about(seconds) == expected


def test_cheapest_run_that_can_diverge_is_made_first(
    tmp_path: Path, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = _session(tmp_path, pool)
    base = session.reference(_ddp(1, "single").but(dtype="float64"))
    assert base.spec is not None
    asked = [("dp", 4), ("dp", 2), ("ddp", 4), ("ddp", 1), ("ddp", 2)]
    specs = [base.spec.but(mode=mode, world_size=size) for mode, size in asked]
    begun: list[tuple[str, int]] = []
    submit = Session._submit  # noqa: SLF001 (what is started)

    def note(self: Session, outcome: RunOutcome) -> Any:
        begun.append((outcome.spec.mode, outcome.spec.world_size))
        return submit(self, outcome)

    monkeypatch.setattr(Session, "_submit", note)
    outcomes = session.run(specs)
    assert begun[0] == ("ddp", 2)
    assert begun.index(("ddp", 1)) > begun.index(("ddp", 4))
    assert [outcome.spec for outcome in outcomes] == specs


@pytest.mark.parametrize(
    ("factor", "verdict"), [("1.000001", "not-checked"), ("1.1", "divergent")]
)
def test_difference_that_may_be_rounding_is_no_divergence_yet(
    factor: str, verdict: str, tmp_path: Path, pool: Pool
) -> None:
    session = _session(tmp_path, pool, factor)
    base = session.reference(_ddp(1, "single").but(dtype="float64"))
    assert base.spec is not None
    outcomes = session.run([base.spec.but(mode="ddp", world_size=2)])
    ((run,), _) = judged_early(outcomes, Options())
    assert (run.verdict, bool(run.why)) == (verdict, verdict == "not-checked")
    ((run,), _) = judged_early(outcomes, Options(tolerance=1e-9))
    assert run.verdict == "divergent"


def _session(folder: Path, pool: Pool, factor: str = "1.0") -> Session:
    """Returns one of a target whose ranks scale the loss by a factor."""
    path = folder / "scaled.py"
    loss = "nn.functional.cross_entropy(output, target)"
    scale = f"{factor} if torch.distributed.is_initialized() else 1.0"
    source = target(loss=f"def loss(output, target):\n    return {loss} * ({scale})\n")
    path.write_text(source, encoding="utf-8")
    return Session(pool, TargetRef(path=str(path)))


def test_baseline_makes_no_pass_of_a_check_that_ended_early() -> None:
    known = sample.divergent()
    early = dataclasses.replace(known, ended="interrupted", exit_code=130)
    applied = baseline.apply(early, known, "old.json")
    assert (applied.verdict, applied.exit_code) == ("not-checked", 130)
    died = dataclasses.replace(known, ended="the fork server was killed")
    applied = baseline.apply(died, known, "old.json")
    assert (applied.verdict, applied.exit_code) == ("not-checked", 3)


def test_report_of_an_earlier_version_is_complete() -> None:
    plain = report.to_json(sample.divergent()).replace(' "ended": "",\n', "")
    assert report.from_json(plain).ended == ""
