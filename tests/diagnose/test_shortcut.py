"""Passes of the probe that leave the model's forward out, where they may."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddpcheck.diagnose.probes.coupling import Grads
from ddpcheck.diagnose.probes.hooks import Hooks, hooked
from ddpcheck.diagnose.probes.reference import Shortcut

OUTPUT: Grads = {(0, "#0/output"): torch.ones(2)}


def _passes(*found: Grads | Exception) -> Callable[[], Grads]:
    left = list(found)

    def run() -> Grads:
        made = left.pop(0)
        if isinstance(made, Exception):
            raise made
        return made

    return run


def _opened(grads: Grads = OUTPUT) -> Shortcut:
    shortcut = Shortcut()
    model = nn.Sequential(nn.Identity())
    shortcut.choose({"": model, "0": model[0]}, grads)
    return shortcut


def test_forward_is_left_out_after_two_passes_that_show_it_may() -> None:
    shortcut = _opened()
    whole, short = _passes(OUTPUT, OUTPUT), _passes(OUTPUT, OUTPUT, {})
    assert not shortcut.is_proven
    assert [shortcut.run(whole, short) for _ in range(3)] == [OUTPUT, OUTPUT, {}]
    assert shortcut.is_proven


def test_pass_that_cannot_be_shortened_is_whole() -> None:
    shortcut = _opened()
    whole, short = _passes(OUTPUT, OUTPUT, {}), _passes(OUTPUT, OUTPUT, IndexError())
    assert [shortcut.run(whole, short) for _ in range(3)] == [OUTPUT, OUTPUT, {}]


@pytest.mark.parametrize(
    "other", [{}, {(0, "#0/output"): torch.full((2,), 1 + 1e-6)}, IndexError()]
)
@pytest.mark.parametrize("good", [0, 1])
def test_forward_stays_where_a_pass_without_it_is_another(
    other: Grads | Exception, good: int
) -> None:
    shortcut = _opened()
    whole, short = _passes(OUTPUT, OUTPUT, OUTPUT), _passes(*[OUTPUT] * good, other)
    for _ in range(3):
        assert shortcut.run(whole, short) is OUTPUT
    assert not shortcut.is_proven


@pytest.mark.parametrize("grads", [{(0, "#0/output"): None}, {}])
def test_forward_stays_where_the_loss_has_no_gradient(grads: Grads) -> None:
    shortcut = _opened(grads)
    for _ in range(3):
        assert shortcut.run(lambda: grads, _passes()) is grads
    assert not shortcut.is_proven


class Counting(nn.Module):
    """Returns its input, and how often it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        self.calls += 1
        return x * 2, self.calls


class Net(nn.Module):
    """Twice what its part returns."""

    def __init__(self, part: Counting) -> None:
        super().__init__()
        self.part, self.calls = part, 0

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        self.calls += 1
        value, calls = self.part(x)
        return value * 2, calls


@pytest.mark.parametrize("has_own", [False, True])
@pytest.mark.parametrize(
    ("begin", "runs"), [("#0/0", (0, 0)), ("part#0/0", (2, 0))], ids=["output", "part"]
)
def test_modules_return_what_they_returned_first(
    begin: str, runs: tuple[int, int], *, has_own: bool
) -> None:
    part = Counting()
    model = Net(part)
    if has_own:
        part.forward = part.forward  # type: ignore[method-assign]
    before = dict(vars(part))
    shortcut, hooks = Shortcut(), Hooks()

    def note(name: str, call: int, _: nn.Module, output: Any) -> None:
        shortcut.note((0, name, call), output, {})

    hooks.attach(model, None, note)
    first = [model(torch.tensor([value])) for value in (1.0, 3.0)]
    shortcut.choose(hooked(model), {(0, begin): torch.ones(1)})
    with shortcut.taken(hooks, is_taken=False):
        model(torch.zeros(1))
    hooks.remove()
    again = Hooks()
    again.attach(model, None, lambda *_: None)
    with shortcut.taken(again, is_taken=True):
        assert [model(torch.zeros(1)) for _ in range(2)] == first
    again.remove()
    assert (model.calls - 3, part.calls - 3) == runs
    assert vars(part).get("forward") == before.get("forward")
