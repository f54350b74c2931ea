"""A rank loads a target once, and again where a job changed its module."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from ddpcheck.ranks.server import preload
from ddpcheck.run.process import loading, modules
from ddpcheck.target.target import TargetRef

SOURCE = """\
import loading_sibling

seen = []


def model():
    seen.append(1)


def batch():
    loading_sibling.seen.append(1)


def loss(output, target):
    return len(seen) + 10 * len(loading_sibling.seen)
"""


@pytest.fixture
def ref(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TargetRef]:
    """A target and a module next to it, in a process prepared as a new rank."""
    (tmp_path / "loading_sibling.py").write_text("seen = []\n", encoding="utf-8")
    path = tmp_path / "loading_target.py"
    path.write_text(SOURCE, encoding="utf-8")
    for name, value in (
        ("_imported", None),
        ("_last", None),
        ("_left", None),
        ("_has_changed", False),
    ):
        monkeypatch.setattr(loading, name, value)
    monkeypatch.setattr(sys, "path", list(sys.path))
    # A rank has no modules of tests, which change.
    is_users = modules.is_users
    monkeypatch.setattr(
        modules, "is_users", lambda n: n.startswith("loading_") and is_users(n)
    )
    with mock.patch.dict(sys.modules):
        yield TargetRef(path=str(path))


def _state(ref: TargetRef) -> int:
    """Returns the values in the target's modules: units its own, tens its sibling's."""
    loss = loading.load(ref).loss
    assert loss is not None
    state: int = loss(None, None)
    return state


def test_target_is_loaded_once(ref: TargetRef) -> None:
    first = loading.load(ref)
    assert loading.load(ref) is first
    first.model()
    assert _state(ref) == 1


def test_file_that_was_written_again_is_loaded_again(ref: TargetRef) -> None:
    loading.load(ref).model()
    assert ref.path is not None
    Path(ref.path).write_text(SOURCE + "\n", encoding="utf-8")
    assert _state(ref) == 0


def test_borrowed_target_stays_where_nothing_changed(ref: TargetRef) -> None:
    first = loading.load(ref)
    with loading.borrowed(ref) as target:
        assert target is first
    assert loading.load(ref) is first


@pytest.mark.parametrize("is_preloaded", [False, True])
@pytest.mark.parametrize("changes", ["model", "batch"])
def test_borrowed_target_is_loaded_again_with_its_neighbours_where_it_changed(
    ref: TargetRef, changes: str, monkeypatch: pytest.MonkeyPatch, *, is_preloaded: bool
) -> None:
    if is_preloaded:
        made = loading.Loaded(ref=ref, target=loading.load(ref))
        monkeypatch.setattr(preload, "RESULT", made)
    with loading.borrowed(ref) as target:
        getattr(target, changes)()
        assert _state(ref) == {"model": 1, "batch": 10}[changes]
    assert _state(ref) == 0


def test_fingerprint_is_what_the_last_job_left(ref: TargetRef) -> None:
    target = loading.load(ref)
    first = loading.left(target)
    assert loading.left(target) == first == loading.fingerprint(target)
    target.model()
    second = loading.fingerprint(target)
    assert loading.left(target) == second != first
    loading.forget(target)
    assert loading.left(loading.load(ref)) not in (first, second)


def test_fingerprint_is_of_the_target_that_took_the_place_of_another(
    ref: TargetRef, tmp_path: Path
) -> None:
    loading.fingerprint(loading.load(ref))
    count = len(sys.modules)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "loading_sibling.py").write_text("seen = []\n", encoding="utf-8")
    (folder / "loading_other.py").write_text(SOURCE, encoding="utf-8")
    target = loading.load(TargetRef(path=str(folder / "loading_other.py")))
    assert len(sys.modules) == count  # and yet others
    before = loading.fingerprint(target)
    target.model()
    assert loading.fingerprint(target) != before


class _Unready(types.ModuleType):
    """A module that is imported when it is first asked for something, and cannot be."""

    def __getattr__(self, name: str) -> object:
        raise ImportError(name)


def test_module_that_cannot_be_asked_is_passed_over(
    ref: TargetRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "loading_unready", _Unready("loading_unready"))
    target = loading.load(ref)
    assert loading.fingerprint(target) == loading.fingerprint(target)


LATE_SOURCE = """
import torch
from torch.autograd import grad
from torch.distributed import all_reduce as reduce, get_rank, is_initialized
plain = torch.add
def ask(tensor):
    return reduce(tensor)
"""


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[types.ModuleType]:
    """A user's module, in sys.modules as long as the test runs."""
    made: Any = types.ModuleType("late_names_owner")
    made.__file__ = str(tmp_path / "late_names_owner.py")
    Path(made.__file__).write_text(LATE_SOURCE, encoding="utf-8")
    exec(LATE_SOURCE, vars(made))  # noqa: S102
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]


def test_what_takes_the_place_of_a_function_is_called_directly(
    owner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading.rebind_late([owner.__name__])
    callers: list[str] = []

    def all_reduce(_: Any) -> str:
        callers.append(sys._getframe(1).f_code.co_name)  # noqa: SLF001
        return "watched"

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    assert owner.ask(torch.ones(1)) == "watched"
    assert callers == ["ask"]


def test_without_another_the_function_itself_is_called(owner: Any) -> None:
    before = dist.all_reduce
    loading.rebind_late([owner.__name__])
    assert owner.is_initialized() is False
    x = torch.tensor(3.0, requires_grad=True)
    assert float(owner.grad(x * x, x)[0]) == 6.0
    assert inspect.signature(owner.reduce) == inspect.signature(before)
    assert owner.plain is torch.add
    assert dist.all_reduce is before


def test_module_that_is_traced_whole_is_left_alone(owner: Any) -> None:
    before = owner.reduce
    source = f"{LATE_SOURCE}# torch.compile(model, fullgraph=True)\n"
    Path(owner.__file__).write_text(source, encoding="utf-8")
    loading.rebind_late([owner.__name__])
    assert owner.reduce is before
