"""Meta-tests: a cell fails where it must."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ddpcheck.ranks.messages import Job
from ddpcheck.ranks.pool import SOLO
from ddpcheck.run.spec import ReferenceResult, RunOutcome, RunSpec
from ddpcheck.suite import judge as judges
from ddpcheck.suite.cells import Cell, Row
from ddpcheck.suite.judge import judge
from ddpcheck.suite.runner import Runner, SuiteError
from ddpcheck.suite.zoo import matrix
from ddpcheck.target.target import TargetRef

MASKED = Cell(
    row=Row(model="mlp", loss="masked", batch_norm="asis", mode="ddp"), world_size=2
)
MEAN = dataclasses.replace(MASKED, row=dataclasses.replace(MASKED.row, loss="mean"))
SPEC = RunSpec(mode="ddp", world_size=2)


def _ref(loss: str) -> TargetRef:
    arguments = (("model", "mlp"), ("loss", loss))
    return TargetRef(factory="ddpcheck.suite.zoo.cases:target", arguments=arguments)


def _reference(runner: Runner, loss: str) -> ReferenceResult:
    arguments = {"ref": _ref(loss), "spec": SPEC.but(mode="single", world_size=1)}
    job = Job(function="ddpcheck.run.jobs:reference", arguments=arguments)
    made: ReferenceResult = runner.pool.run(job, SOLO)[0].value
    return made


def _prediction(runner: Runner, loss: str, world_size: int) -> ReferenceResult:
    arguments = {
        "model": "mlp",
        "loss": loss,
        "spec": SPEC.but(world_size=world_size),
        "reference": _reference(runner, loss).trace,
    }
    job = Job(function="ddpcheck.suite.zoo.record:predicted", arguments=arguments)
    made: ReferenceResult = runner.pool.run(job, SOLO)[0].value
    return made


def _outcome(runner: Runner, loss: str, against: ReferenceResult) -> RunOutcome:
    arguments = {"ref": _ref(loss), "spec": SPEC, "trace": against.trace}
    job = Job(function="ddpcheck.run.jobs:candidate", arguments=arguments)
    ranks = runner.pool.run(job, SPEC.world_size)
    return RunOutcome(spec=SPEC, reference=against, ranks=ranks)


def _excess(text: str) -> float:
    return float(text.partition("with excess ")[2].split(",")[0])


def test_wrong_prediction_fails_the_cell(suite_runner: Runner) -> None:
    wrong = _prediction(suite_runner, "masked", world_size=4)
    result = judge(MASKED, None, _outcome(suite_runner, "masked", wrong))
    assert result.status == "FAILED"
    expected = (
        "mlp-masked-asis-ddp at world size 2: expected the predicted training, "
        "which is far from single-process training, found 12 of 12 gradients unequal "
        "to "
        "the prediction, worst "
    )
    assert result.why.startswith(expected)
    assert _excess(result.why) > 1e6


def test_right_prediction_passes_the_same_cell(suite_runner: Runner) -> None:
    right = _prediction(suite_runner, "masked", world_size=2)
    result = judge(MASKED, None, _outcome(suite_runner, "masked", right))
    assert (result.status, result.why) == ("predicted", "")
    assert result.excess < 1e-3


def test_prediction_near_one_process_fails_the_cell(suite_runner: Runner) -> None:
    near = _prediction(suite_runner, "mean", world_size=2)
    result = judge(MASKED, None, _outcome(suite_runner, "mean", near))
    assert result.status == "FAILED"
    assert "found a prediction near single-process training: excess " in result.why


def test_divergence_that_the_tool_misses_fails_the_cell(suite_runner: Runner) -> None:
    prediction = _prediction(suite_runner, "masked", world_size=2)
    equal = _outcome(suite_runner, "mean", _reference(suite_runner, "mean"))
    found = judge(MASKED, equal, _outcome(suite_runner, "masked", prediction))
    assert "(verdict equivalent)" in found.why


def test_divergence_where_equality_is_due_fails_the_cell(suite_runner: Runner) -> None:
    reference = _reference(suite_runner, "masked")
    result = judge(MEAN, _outcome(suite_runner, "masked", reference), None)
    assert result.status == "FAILED"
    assert "expected single-process training, found 12 of 12 grad" in result.why


def test_cell_that_compares_nothing_fails(suite_runner: Runner) -> None:
    reference = _reference(suite_runner, "mean")
    outcome = _outcome(suite_runner, "mean", reference)
    for rank in outcome.ranks:
        rank.progress.clear()
    result = judge(MEAN, outcome, None)
    assert result.status == "FAILED"
    assert result.why.endswith("found nothing to compare: no gradients")


def test_cell_with_a_step_less_fails(suite_runner: Runner) -> None:
    reference = _reference(suite_runner, "mean")
    outcome = _outcome(suite_runner, "mean", reference)
    for rank in outcome.ranks:
        rank.progress.pop()
    result = judge(MEAN, outcome, None)
    assert result.why.endswith("found gradients of 2 steps out of 3")


def test_rank_that_died_fails_the_cell(suite_runner: Runner) -> None:
    outcome = _outcome(suite_runner, "mean", _reference(suite_runner, "mean"))
    outcome.ranks[1].kind = "died"
    outcome.ranks[1].exit_code = -9
    outcome.ranks[1].value = None
    result = judge(MEAN, outcome, None)
    assert result.why.endswith("found rank 1 that died: was killed by SIGKILL")


def test_far_is_never_within_ten_tolerances() -> None:
    assert judges.far(1e-9) == pytest.approx(1e6)
    assert judges.far(2e-4) == 10


def test_reference_that_cannot_be_made_stops_the_suite(suite_runner: Runner) -> None:
    row = dataclasses.replace(MEAN.row, model="no_such_model")
    with pytest.raises(SuiteError, match="no_such_model"):
        Runner(suite_runner.pool).run([dataclasses.replace(MEAN, row=row)])


def test_run_of_a_case_leaves_no_predictions_behind(suite_runner: Runner) -> None:
    folder = Path(suite_runner.pool.folder)
    runner = Runner(suite_runner.pool)
    before = {path.name for path in folder.iterdir()}
    runner.run([MASKED])
    runner.forget()
    traces = {path.name for path in folder.iterdir() if path.suffix == ".idx"}
    assert traces <= before


def test_every_row_names_known_things() -> None:
    with pytest.raises(ValueError, match="'median' is none of mean, sum"):
        matrix.expected("mlp", "median", "asis", "ddp", 2)
