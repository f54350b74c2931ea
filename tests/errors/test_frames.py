"""Stacks: where a frame's code comes from, and whether a rank only waits for others."""

from __future__ import annotations

from pathlib import Path

import pytest

import ddpcheck
from ddpcheck.errors import frames

TORCH = "/venv/lib/python3.11/site-packages/torch"
OWN = Path(ddpcheck.__file__).parent
MAIN = f'  File "{OWN}/ranks/worker.py", line 9 in rank_main\n'


def _dump(*threads: tuple[str, ...]) -> str:
    heads = ("Thread 0x1 (most recent call first):\n",) * len(threads)
    return "".join(
        head + "".join(f'  File "{file}", line 3 in f\n' for file in files)
        for head, files in zip(heads, threads, strict=True)
    )


@pytest.mark.parametrize(
    ("file", "waits"),
    [
        (f"{TORCH}/distributed/distributed_c10d.py", True),
        (f"{TORCH}/autograd/graph.py", True),
        (f"{TORCH}/distributed/checkpoint/filesystem.py", False),
        (f"{TORCH}/autograd/function.py", False),
        (f"{OWN}/run/interventions/collectives/exact.py", True),
        (f"{OWN}/run/interventions/apply.py", False),
        ("/home/me/train.py", False),
        ("/home/me/ddpcheck/examples/train.py", False),
    ],
)
def test_waits_are_known_by_the_innermost_file(file: str, *, waits: bool) -> None:
    assert frames.exchanges(_dump((file,)) + MAIN) is waits


def test_other_thread_in_code_of_the_users_may_send_what_is_waited_for() -> None:
    waiting = _dump((f"{TORCH}/autograd/graph.py",)) + MAIN
    idle = _dump(("/usr/lib/python3.11/threading.py",))
    users = _dump(("/usr/lib/python3.11/threading.py", "/home/me/train.py"))
    assert frames.exchanges(idle + waiting)
    assert not frames.exchanges(users + waiting)


def _raised(*files: str) -> str:
    return "".join(f'  File "{file}", line 3, in f\n    f()\n' for file in files)


@pytest.mark.parametrize(
    ("files", "is_own"),
    [
        (
            (f"{OWN}/run/steps.py", f"{OWN}/compare/tree.py", f"{TORCH}/_tensor.py"),
            True,
        ),
        (("/home/me/train.py", f"{OWN}/run/record/recorders.py"), True),
        ((f"{OWN}/compare/tree.py", "/home/me/train.py", f"{TORCH}/_tensor.py"), False),
        # A module of torch's, called by ddpcheck: it is the target's.
        ((f"{OWN}/run/steps.py", f"{TORCH}/nn/modules/module.py"), False),
        (("/home/me/ddpcheck/compare/tree.py",), False),
    ],
)
def test_own_work_fails_where_no_code_of_the_target_is_further_inside(
    files: tuple[str, ...], *, is_own: bool
) -> None:
    assert bool(frames.raised_in_own_work(_raised(*files))) is is_own


def test_lists_of_code_name_files_and_folders_of_the_package() -> None:
    listed = (*frames._OWN_WORK, *frames._CALLS_USERS, *frames._OWN_EXCHANGES)  # noqa: SLF001 (a stale path matches nothing, silently)
    for path in listed:
        found = OWN / path
        assert found.is_dir() if path.endswith("/") else found.is_file(), path


def test_own_frames_are_those_of_the_package_not_of_a_folder_of_its_name() -> None:
    inside = frames.Frame(file=f"{OWN}/run/steps.py", line=1, name="f")
    elsewhere = frames.Frame(file="/home/me/ddpcheck/train.py", line=1, name="f")
    assert (inside.is_own, inside.is_users) == (True, False)
    assert (elsewhere.is_own, elsewhere.is_users) == (False, True)


def test_main_thread_of_a_rank_comes_before_the_others() -> None:
    other = _dump(("/home/me/train.py",))
    main = _dump(("/home/me/loss.py",)) + MAIN
    assert frames.main_first(f"{other}\n{main}") == f"{main}\n{other}"
    assert frames.main_first(f"Fatal\n\n{other}\n{main}") == f"Fatal\n\n{main}\n{other}"


def test_current_thread_comes_first_where_none_is_a_ranks() -> None:
    other = _dump(("/home/me/train.py",))
    current = other.replace("Thread", "Current thread")
    assert frames.main_first(f"{other}\n{current}") == f"{current}\n{other}"


@pytest.mark.parametrize("dump", ["", _dump(("/home/me/train.py",)) + MAIN])
def test_stack_of_one_thread_stays_as_it_is(dump: str) -> None:
    assert frames.main_first(dump) == dump


def test_innermost_line_of_the_users_is_part_of_a_sentence() -> None:
    waiting = _dump((f"{TORCH}/autograd/graph.py", "/home/me/train.py"))
    assert frames.in_users(waiting + MAIN) == ", at train.py:3 in f"
    assert frames.in_users(_dump((f"{TORCH}/autograd/graph.py",)) + MAIN) == ""


def test_paths_that_show_where_a_failure_comes_from_exist() -> None:
    listed = (
        *frames._OWN_WORK,  # noqa: SLF001 (the tables are what is tested)
        *frames._CALLS_USERS,  # noqa: SLF001
        *frames._OWN_EXCHANGES,  # noqa: SLF001
    )
    missing = [path for path in listed if not (OWN / path).exists()]
    assert missing == []
