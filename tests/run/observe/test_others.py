"""Optimizers beside the one that a training step is given."""

from __future__ import annotations

import types

import torch
from torch import nn

from ddpcheck.run.observe import others


def test_optimizers_in_sight_of_a_step_and_what_they_train() -> None:
    weights = [nn.Parameter(torch.zeros(n)) for n in (1, 2, 3)]
    given = torch.optim.SGD([weights[0]], lr=1.0)
    given.second = torch.optim.Adam([weights[1], weights[2]])  # type: ignore[attr-defined]
    scope = {"mine": torch.optim.SGD([weights[2]], lr=1.0), "given": given, "number": 3}
    code = compile("def step(model, optimizer, batch): ...", "", "exec").co_consts[0]
    step = types.FunctionType(code, scope)
    found = others.optimizers(step, given)
    assert list(found) == ["mine", "optimizer.second"]
    trained = others.trained(found)
    assert list(trained) == ["mine[0]", "optimizer.second[0]", "optimizer.second[1]"]
    assert [len(t) for t in trained.values()] == [3, 2, 3]


def test_target_without_a_step_of_its_own_has_no_others() -> None:
    assert others.optimizers(None, None) == {}
    assert others.trained({"odd": object()}) == {}
