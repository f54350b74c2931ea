"""Passes of the probe that leave the model's forward out, where they may."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ddpcheck.diagnose.probes.coupling import Grads
from ddpcheck.diagnose.probes.shortcut import Shortcut
from ddpcheck.diagnose.probes.teacher import Hooks

OUTPUT: Grads = {(0, "#0/output"): torch.ones(2)}
INSIDE: Grads = {(0, "#0/output"): torch.ones(2), (0, "layer#0/output"): torch.ones(2)}


def _passes(*found: Grads | Exception) -> Callable[[], Grads]:
    left = list(found)

    def run() -> Grads:
        made = left.pop(0)
        if isinstance(made, Exception):
            raise made
        return made

    return run


def test_forward_is_left_out_after_two_passes_that_show_it_may() -> None:
    shortcut = Shortcut(nn.Identity())
    shortcut.look_at(OUTPUT)
    whole, short = _passes(OUTPUT, OUTPUT), _passes(OUTPUT, OUTPUT, {})
    assert not shortcut.is_proven
    assert [shortcut.run(whole, short) for _ in range(3)] == [OUTPUT, OUTPUT, {}]
    assert shortcut.is_proven


@pytest.mark.parametrize(
    "other", [{}, {(0, "#0/output"): torch.full((2,), 1 + 1e-6)}, IndexError()]
)
def test_forward_stays_where_a_pass_without_it_is_another(
    other: Grads | Exception,
) -> None:
    shortcut = Shortcut(nn.Identity())
    shortcut.look_at(OUTPUT)
    whole, short = _passes(OUTPUT, OUTPUT, OUTPUT), _passes(OUTPUT, other)
    for _ in range(3):
        assert shortcut.run(whole, short) is OUTPUT
    assert not shortcut.is_proven


@pytest.mark.parametrize("grads", [INSIDE, {(0, "#0/output"): None}, {}])
def test_forward_stays_where_gradients_begin_inside(grads: Grads) -> None:
    shortcut = Shortcut(nn.Identity())
    shortcut.look_at(grads)
    for _ in range(3):
        assert shortcut.run(lambda: grads, _passes()) is grads
    assert not shortcut.is_open


class Counting(nn.Module):
    """Returns its input, and how often it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        self.calls += 1
        return x * 2, self.calls


@pytest.mark.parametrize("has_own", [False, True])
def test_model_returns_what_it_returned_first(*, has_own: bool) -> None:
    model = Counting()
    if has_own:
        model.forward = model.forward  # type: ignore[method-assign]
    before = dict(vars(model))
    shortcut, hooks = Shortcut(model), Hooks()
    hooks.attach(
        model, None, lambda name, call, _, out: shortcut.note(hooks, name, call, out)
    )
    model(torch.tensor([1.0]))
    model(torch.tensor([3.0]))
    hooks.remove()
    again = Hooks()
    again.attach(model, None, lambda *_: None, inside=False)
    with shortcut.taken(again, is_taken=True):
        found = [model(torch.zeros(1)) for _ in range(2)]
    again.remove()
    assert [(float(t), n) for t, n in found] == [(2.0, 1), (6.0, 2)]
    assert model.calls == 2
    assert vars(model).get("forward") == before.get("forward")
    with shortcut.taken(again, is_taken=False):
        assert model(torch.zeros(1))[1] == 3
