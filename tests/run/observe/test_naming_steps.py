"""Whether a training step is written to let an optimizer step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from ddpcheck.run.observe.naming_steps import names_a_step


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
