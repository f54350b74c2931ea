"""Why ranks of a script wait for each other: by the places where they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ddpcheck.checking import script_waits
from ddpcheck.ranks.messages import Outcome
from ddpcheck.report.data import Fault
from ddpcheck.run.script import driver
from ddpcheck.run.script.events import Drawn, Updated

SCRIPT = """\
def evaluate():
    dist.all_reduce(loss)


def main():
    for epoch in range(3):
        for x, y in loader:
            loss.backward()
        if rank == 0:
            evaluate()
        dist.barrier()
    dist.barrier()


main()
"""
TORCH = Path(torch.__file__).parent
COLLECTIVE = f'  File "{TORCH}/distributed/distributed_c10d.py", line 5 in barrier\n'
BACKWARD = f'  File "{TORCH}/autograd/graph.py", line 5 in _engine_run_backward\n'


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


def _stack(script: Path, innermost: str, *places: tuple[int, str]) -> str:
    """Returns what faulthandler writes of a rank; the innermost place comes first."""
    lines = [f'  File "{script}", line {line} in {name}\n' for line, name in places]
    outer = f'  File "{script}", line 15 in <module>\n'
    outer += f'  File "{driver.__file__}", line 5 in script_main\n'
    return "".join(["Current thread 0x01:\n", innermost, *lines, outer])


def _rank(rank: int, drawn: int, updates: int, stack: str = "") -> Outcome:
    batches = [
        Drawn(loader=0, turn=0, number=i, samples=(i,), step=i) for i in range(drawn)
    ]
    made = [Updated(step=i, updates=1, groups=()) for i in range(updates)]
    kind = "hung" if stack else "done"
    progress = [*batches, *made]
    return Outcome(rank=rank, kind=kind, progress=progress, stack=stack)  # type: ignore[arg-type]


def _slug(*ranks: Outcome) -> str | None:
    faults = [
        Fault(kind="hung", rank=one.rank, step=0, summary="", stack=one.stack)
        for one in ranks
        if one.stack
    ]
    found = script_waits.cause(ranks, faults)
    return found.slug if found is not None else None


def test_rank_behind_the_loop_in_which_another_trains_has_stopped(script: Path) -> None:
    ahead = _stack(script, COLLECTIVE, (12, "main"))
    behind = _stack(script, BACKWARD, (8, "main"))
    slug = _slug(_rank(0, 4, 4, ahead), _rank(1, 5, 4, behind))
    assert slug == "sync/control-desync"


def test_rank_that_has_ended_while_another_trains_has_stopped(script: Path) -> None:
    behind = _stack(script, BACKWARD, (8, "main"))
    assert _slug(_rank(0, 4, 4), _rank(1, 5, 4, behind)) == "sync/control-desync"


def test_rank_that_drew_as_much_and_updated_less_left_out_a_backward(
    script: Path,
) -> None:
    behind = _stack(script, BACKWARD, (8, "main"))
    slug = _slug(_rank(0, 5, 4), _rank(1, 5, 4, behind))
    assert slug == "graph/skipped-backward"


def test_collectives_in_different_places_of_one_loop_do_not_match(
    script: Path,
) -> None:
    evaluates = _stack(script, COLLECTIVE, (2, "evaluate"), (10, "main"))
    waits = _stack(script, COLLECTIVE, (11, "main"))
    slug = _slug(_rank(0, 4, 4, evaluates), _rank(1, 4, 4, waits))
    assert slug == "sync/collective-mismatch"


def test_rank_that_does_something_else_gives_no_cause(script: Path) -> None:
    evaluates = _stack(script, COLLECTIVE, (2, "evaluate"), (10, "main"))
    sleeps = _stack(script, "", (11, "main"))
    assert _slug(_rank(0, 4, 4, evaluates), _rank(1, 4, 4, sleeps)) is None


def test_ranks_in_one_place_have_no_cause(script: Path) -> None:
    stack = _stack(script, COLLECTIVE, (11, "main"))
    assert _slug(_rank(0, 4, 4, stack), _rank(1, 4, 4, stack)) is None
    backward = _stack(script, BACKWARD, (8, "main"))
    assert _slug(_rank(0, 4, 4, backward), _rank(1, 4, 4, backward)) is None
