"""Names that user code imported from torch follow what takes their place there."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ddpcheck.run.process import late_names

SOURCE = """
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
    Path(made.__file__).write_text(SOURCE, encoding="utf-8")
    exec(SOURCE, vars(made))  # noqa: S102
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]


def test_what_takes_the_place_of_a_function_is_called_directly(
    owner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    late_names.rebind([owner.__name__])
    callers: list[str] = []

    def all_reduce(_: Any) -> str:
        callers.append(sys._getframe(1).f_code.co_name)  # noqa: SLF001
        return "watched"

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    assert owner.ask(torch.ones(1)) == "watched"
    assert callers == ["ask"]


def test_without_another_the_function_itself_is_called(owner: Any) -> None:
    before = dist.all_reduce
    late_names.rebind([owner.__name__])
    assert owner.is_initialized() is False
    x = torch.tensor(3.0, requires_grad=True)
    assert float(owner.grad(x * x, x)[0]) == 6.0
    assert inspect.signature(owner.reduce) == inspect.signature(before)
    assert owner.plain is torch.add
    assert dist.all_reduce is before


def test_module_that_is_traced_whole_is_left_alone(owner: Any) -> None:
    before = owner.reduce
    source = f"{SOURCE}# torch.compile(model, fullgraph=True)\n"
    Path(owner.__file__).write_text(source, encoding="utf-8")
    late_names.rebind([owner.__name__])
    assert owner.reduce is before
