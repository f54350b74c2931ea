"""What a context replaced is as before at its end, after an exception as well."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ddpcheck.run.process.replacing import (
    all_replaced,
    functions_run_by,
    hooked,
    replaced,
)


class Base:
    """Has one method."""

    def said(self) -> str:
        """Returns its text."""
        return "base"


class Inherits(Base):
    """Has none of its own."""


def test_own_and_inherited_attributes_are_put_back() -> None:
    own = vars(Base)["said"]
    new = {(Base, "said"): lambda _: "b", (Inherits, "said"): lambda _: "i"}
    with all_replaced(new):
        assert (Base().said(), Inherits().said()) == ("b", "i")
    assert vars(Base)["said"] is own
    assert "said" not in vars(Inherits)


def test_an_attribute_is_put_back_after_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), replaced(Inherits, said=lambda _: 1 / 0):
        Inherits().said()
    assert Inherits().said() == "base"


def test_hooks_are_removed() -> None:
    layer = nn.Identity()
    handle = layer.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), hooked(handle):
        layer(torch.zeros(1))
    assert layer(torch.zeros(1)) == 0


def test_an_autograd_function_is_run_by_what_replaces_its_apply() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: object, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    plain = vars(torch.autograd.Function)["apply"]
    with functions_run_by(lambda apply, cls, x: (cls, apply(x + 1))):
        found = Double.apply(torch.ones(1))  # type: ignore[no-untyped-call]
    assert found[0] is Double
    assert float(found[1]) == 4.0
    assert vars(torch.autograd.Function)["apply"] is plain
