"""Whether a training step is written to let an optimizer step."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ddpcheck.run.observe import used_names
from ddpcheck.run.observe.used_names import names_a_step


def _only_backward(optimizer: Any) -> None:
    optimizer.zero_grad()


def _update(optimizer: Any) -> None:
    optimizer.step()


def _hands_on(optimizer: Any) -> None:
    _update(optimizer)


def _nested(optimizer: Any) -> None:
    def run() -> None:
        optimizer.step()

    run()


def _calls_itself(depth: int) -> None:
    if depth:
        _calls_itself(depth - 1)


class _Trainer:
    def __call__(self, optimizer: Any) -> None:
        optimizer.step()

    def train(self, optimizer: Any) -> None:
        optimizer.step()


_TRAINER = _Trainer()


def _by_a_trainer(optimizer: Any) -> None:
    _TRAINER.train(optimizer)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (_only_backward, False),
        (_calls_itself, False),
        (None, False),
        (_update, True),
        (_hands_on, True),
        (_nested, True),
        (functools.partial(_update, None), True),
        (_Trainer(), True),
        (_Trainer().train, True),
        (_by_a_trainer, True),
    ],
    ids=[
        "backward-alone",
        "recursion",
        "no-step-of-its-own",
        "own",
        "of-the-file",
        "nested",
        "partial",
        "object",
        "method",
        "method-of-a-global",
    ],
)
def test_step_is_found_where_the_code_names_it(
    function: Callable[..., None] | None, *, expected: bool
) -> None:
    assert names_a_step(function) is expected


def test_optimizers_in_sight_of_a_step_and_what_they_train() -> None:
    weights = [nn.Parameter(torch.zeros(n)) for n in (1, 2, 3)]
    given = torch.optim.SGD([weights[0]], lr=1.0)
    given.second = torch.optim.Adam([weights[1], weights[2]])  # type: ignore[attr-defined]
    scope = {"mine": torch.optim.SGD([weights[2]], lr=1.0), "given": given, "number": 3}
    code = compile("def step(model, optimizer, batch): ...", "", "exec").co_consts[0]
    step = types.FunctionType(code, scope)
    found = used_names.other_optimizers(step, given)
    assert list(found) == ["mine", "optimizer.second"]
    trained = used_names.trained_tensors(found)
    assert list(trained) == ["mine[0]", "optimizer.second[0]", "optimizer.second[1]"]
    assert [len(t) for t in trained.values()] == [3, 2, 3]


def test_target_without_a_step_of_its_own_has_no_others() -> None:
    assert used_names.other_optimizers(None, None) == {}
    assert used_names.trained_tensors({"odd": object()}) == {}
