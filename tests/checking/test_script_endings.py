"""How the processes of a script ended, and what is a fault of the ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ddpcheck.checking.script_endings import Endings, steps
from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks.made import Made, Refused
from ddpcheck.ranks.messages import Outcome, Raised
from ddpcheck.run.script.events import Updated
from ddpcheck.run.session.session import CannotCheckError
from ddpcheck.target.script import Script

SCRIPT = Script(path="/project/train.py", folder="/project")
NOTHING = Made(paths=(), refused=(), programs=())
LIMIT_S = 300.0
HUNG = 'Current thread 0x1 (most recent call first):\n  File "/project/train.py", line'


def _ended(kind: str, steps: int, **rest: object) -> Outcome:
    updates = [Updated(step=n, updates=1, groups=()) for n in range(steps)]
    return Outcome(rank=0, kind=kind, progress=[*updates], **rest)  # type: ignore[arg-type]


def _raised(kind: str, steps: int, stack: str = "", message: str = "x") -> Outcome:
    raised = Raised(type_name=kind, message=message, stack=stack, where="train.py:9")
    return _ended("raised", steps, raised=raised)


def _endings(single: Outcome, *ranks: Outcome, made: Made = NOTHING) -> Endings:
    numbered = [replace(outcome, rank=rank) for rank, outcome in enumerate(ranks)]
    return Endings(
        script=SCRIPT,
        ranks=numbered,
        single=single,
        asked=3,
        made=made,
        seconds=LIMIT_S,
        single_s=4.0,
    )


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


CUDA = "Torch not compiled with CUDA enabled"


@pytest.mark.parametrize(
    ("script", "fix"),
    [
        (
            SCRIPT,
            "add --cuda-as-cpu before the script: what it asks of CUDA, the CPU does",
        ),
        (
            replace(SCRIPT, cuda_as_cpu=True),
            "check it on a machine with CUDA, without --cuda-as-cpu: that does not "
            "replace what it asks for here",
        ),
    ],
)
def test_want_of_cuda_on_ranks_is_no_fault_of_theirs(script: Script, fix: str) -> None:
    rank = _raised("AssertionError", 0, message=CUDA)
    endings = replace(
        _endings(_ended("done", 3), _ended("hung", 0), rank), script=script
    )
    with pytest.raises(UsageError) as caught:
        endings.check()
    problem = caught.value.problem
    assert (problem.slug, problem.message, problem.found, problem.fix) == (
        "script-fails",
        "train.py fails on ranks, for want of CUDA",
        f"AssertionError: {CUDA} (train.py:9)",
        fix,
    )


def test_want_of_cuda_after_the_steps_is_a_fault() -> None:
    rank = _raised("AssertionError", 3, message=CUDA)
    endings = _endings(_ended("done", 3), _ended("done", 3), rank)
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


def _at_work(*ends: float) -> Outcome:
    """Returns a rank that the time limit ended; `ends` of its updates, in seconds."""
    updates = [
        Updated(step=step, updates=1, groups=(), at=end)
        for step, end in enumerate(ends)
    ]
    return Outcome(
        rank=0, kind="hung", progress=[*updates], stack=f"{HUNG} 9 in main\n"
    )


BARRIER = (
    f'  File "{torch.__path__[0]}/distributed/distributed_c10d.py", line 5 in barrier'
)
WAITS = _ended("hung", 1, stack=f"Current thread 0x1:\n{BARRIER}\n")


@pytest.mark.parametrize(
    ("single_s", "rank"),
    [
        (61.0, _at_work(20.0)),  # the limit is not five times the single process's time
        (4.0, _at_work(100.0, 200.0)),  # the next update is not late yet
        (61.0, _at_work()),
    ],
)
def test_rank_that_may_be_slow_is_no_fault(single_s: float, rank: Outcome) -> None:
    endings = replace(_endings(_ended("done", 3), WAITS, rank), single_s=single_s)
    endings.check()
    assert endings.faults() == []
    assert endings.slow() == (
        "rank 1 was still at work at the time limit, at train.py:9 in main; if it "
        "needs longer: --timeout-s"
    )


@pytest.mark.parametrize(
    ("single_s", "rank"),
    [
        (59.0, _at_work(20.0)),
        (4.0, _at_work(40.0, 99.0)),  # twice the longest update, and more
        (61.0, WAITS),
        (61.0, _ended("stuck", 1, stack=f"{HUNG} 9 in main\n")),
    ],
)
def test_rank_that_hangs_is_a_fault(single_s: float, rank: Outcome) -> None:
    endings = replace(_endings(_ended("done", 3), WAITS, rank), single_s=single_s)
    assert endings.slow() == ""
    assert [(fault.rank, fault.step) for fault in endings.faults()] == [
        (0, 0),
        (1, steps(rank) - 1),
    ]


def test_rank_that_raised_is_the_fault_beside_one_at_work() -> None:
    endings = _endings(_ended("done", 3), _at_work(100.0), _raised("KeyError", 1))
    assert [(fault.kind, fault.step) for fault in endings.faults()] == [
        ("hung", 0),
        ("raised", 1),
    ]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("hung", "there the single process is still at work at the time limit"),
        ("stuck", "there the single process hangs"),
    ],
)
def test_end_of_the_single_process_at_the_limit_is_not_called_a_hang(
    kind: str, why: str
) -> None:
    end = _ended(kind, 2, stack=f"{HUNG} 9 in main\n")
    assert [one.why for one in _endings(end, end).left_out()] == [
        f"{why}, at train.py:9 in main"
    ]
