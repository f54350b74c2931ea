"""How the processes of a script ended, and what is a fault of the ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpcheck.checking.script_endings import Endings
from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks.made import Made, Refused
from ddpcheck.ranks.messages import Outcome, Raised
from ddpcheck.run.script.events import Updated
from ddpcheck.run.session.session import CannotCheckError
from ddpcheck.target.script import Script

SCRIPT = Script(path="/project/train.py", folder="/project")
NOTHING = Made(paths=(), refused=(), programs=())
HUNG = 'Current thread 0x1 (most recent call first):\n  File "/project/train.py", line'


def _ended(kind: str, steps: int, **rest: object) -> Outcome:
    updates = [Updated(step=n, updates=1, groups=()) for n in range(steps)]
    return Outcome(rank=0, kind=kind, progress=[*updates], **rest)  # type: ignore[arg-type]


def _raised(kind: str, steps: int, stack: str = "", message: str = "x") -> Outcome:
    raised = Raised(type_name=kind, message=message, stack=stack, where="train.py:9")
    return _ended("raised", steps, raised=raised)


def _endings(single: Outcome, *ranks: Outcome, made: Made = NOTHING) -> Endings:
    numbered = [replace(outcome, rank=rank) for rank, outcome in enumerate(ranks)]
    return Endings(script=SCRIPT, ranks=numbered, single=single, asked=3, made=made)


@pytest.mark.parametrize(
    ("end", "what"),
    [
        (_raised("ValueError", 3), "update 3"),
        (_raised("SystemExit", 1, message="3"), "update 1"),
        (_raised("ScriptInterrupt", 2), "update 2"),
        (_ended("died", 2, exit_code=0), "update 2"),
        (_ended("hung", 2, stack=f"{HUNG} 9 in main\n"), "update 2"),
    ],
)
def test_ranks_that_end_as_the_single_process_are_no_fault(
    end: Outcome, what: str
) -> None:
    endings = _endings(end, end, end)
    endings.check()
    assert endings.faults() == []
    assert [item.what for item in endings.left_out()] == [f"what follows {what}"]


@pytest.mark.parametrize(
    ("end", "error", "text"),
    [
        (_raised("ValueError", 2), UsageError, "script-fails"),
        (_raised("SystemExit", 0, message="2"), UsageError, "script-fails"),
        (_ended("died", 0, exit_code=0), CannotCheckError, "ends its process"),
        (_ended("hung", 0), CannotCheckError, "hangs as a single process"),
    ],
)
def test_single_process_that_does_not_train_is_an_error(
    end: Outcome, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        _endings(end, end).check()


@pytest.mark.parametrize(
    ("single", "rank"),
    [
        (_ended("done", 3), _raised("ValueError", 3)),
        (_raised("ValueError", 3), _raised("KeyError", 3)),
        (_ended("died", 3, exit_code=0), _ended("died", 3, exit_code=1)),
        (
            _ended("hung", 3, stack=f"{HUNG} 9 in main\n"),
            _ended("hung", 3, stack=f"{HUNG} 7 in main\n"),
        ),
        (_ended("hung", 3), _ended("hung", 3)),  # nobody knows where
    ],
)
def test_rank_that_ends_otherwise_is_a_fault(single: Outcome, rank: Outcome) -> None:
    endings = _endings(single, _ended("done", 3), rank)
    endings.check()
    assert [fault.rank for fault in endings.faults()] == [1]


def test_refusal_before_the_steps_is_an_error_and_a_warning_after_them() -> None:
    refused = Refused(path="/project/out/model.pt", how="overwrite")
    made = replace(NOTHING, refused=(refused,))
    stack = "WriteRefusedError: ddpcheck refuses\nRuntimeError: cannot save"
    early = _raised("RuntimeError", 1, stack)
    with pytest.raises(UsageError) as caught:
        _endings(_ended("done", 3), _ended("done", 3), early, made=made).check()
    problem = caught.value.problem
    assert (problem.slug, problem.found) == (
        "script-writes",
        "overwrite out/model.pt (train.py:9)",
    )
    late = _raised("RuntimeError", 3, stack)
    endings = _endings(late, late, late, made=made)
    endings.check()
    assert endings.warnings() == [
        "the script was not allowed to overwrite out/model.pt; --allow-writes allows it"
    ]


def test_module_that_is_not_there_is_a_usage_error() -> None:
    text = (
        "ddpcheck: there is no module nosuch to run [script-missing-file]\n"
        "  expected   ddpcheck run [options] -m MODULE ARGS\n"
        "  found      nothing\n"
        "  fix        run it where `python -m` finds it\n"
        "  more       ddpcheck --explain script-missing-file"
    )
    end = _raised("UsageError", 0, message=text)
    with pytest.raises(UsageError) as caught:
        _endings(end, end).check()
    assert str(caught.value) == text
