"""Which calls of modules the probes see."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ddpcheck.diagnose.probes.hooks import Hooks


class Model(nn.Module):
    """A model as Lightning's: the wrapper calls training_step in place of forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Tanh()

    def forward(self, rows: Tensor) -> Tensor:
        """Returns the outputs."""
        made: Tensor = self.layer(rows)
        return made

    def training_step(self, rows: Tensor) -> Tensor:
        """Returns the loss."""
        loss: Tensor = self(rows).sum()
        return loss

    def train_through(self, rows: Tensor) -> Tensor:
        """Calls training_step by a call of the model."""
        original = self.forward

        def stand_in(rows: Tensor) -> Tensor:
            vars(self)["forward"] = original
            return self.training_step(rows)

        vars(self)["forward"] = stand_in
        made: Tensor = self(rows)
        return made


def test_call_in_which_another_method_stands_for_forward_is_not_seen() -> None:
    model, hooks, seen = Model(), Hooks(), list[tuple[str, int, int]]()

    def after(name: str, call: int, _: nn.Module, output: Any) -> None:
        seen.append((name, call, output.dim()))

    hooks.attach(model, None, after)
    for _ in range(2):
        model.train_through(torch.ones(4, 3))
    hooks.remove()
    assert seen == [("layer", 0, 2), ("", 0, 2), ("layer", 1, 2), ("", 1, 2)]
