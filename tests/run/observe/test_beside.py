"""State beside a model: found by its names, told when it moves, written where it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ddpcheck.run.observe.beside import Beside
from ddpcheck.target.target import Target

pytestmark = pytest.mark.usefixtures("seeded")


class _Criterion(nn.Module):
    centre: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(2))


class _Counting(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 1)
        self.seen = torch.ones(3)


criterion = _Criterion()
kept: dict[str, Any] = {"scale": 1.0, "means": [np.zeros(2)], "name": "a"}


def _loss(output: Tensor, _: Tensor) -> Tensor:
    return cast("Tensor", criterion(output) * kept["scale"])


def _beside(model: nn.Module) -> Beside:
    target = cast("Target", SimpleNamespace(loss=_loss, train_step=None))
    return Beside(target, model, None)


def test_places_are_named_as_code_names_them() -> None:
    found = _beside(nn.Sequential(_Counting())).places()
    assert set(found) == {
        "model.0.seen",
        "criterion.centre",
        "kept['scale']",
        "kept['means'][0]",
    }


def test_what_hangs_on_the_optimizer_is_beside_the_model() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1)).backward()
    optimizer.step()  # has a state of its own now
    setattr(optimizer, "control", SimpleNamespace(scale=0.5, step=3))  # noqa: B010
    target = cast("Target", SimpleNamespace(loss=None, train_step=None))
    places = Beside(target, model, optimizer).places()
    assert set(places) == {"optimizer.control.scale"}


def test_moved_is_what_was_replaced_or_written_since() -> None:
    model = _Counting()
    beside = _beside(model)
    beside.begin()
    assert beside.moved() == {}
    criterion.centre.data.sub_(
        torch.tensor([1.0, -1.0])
    )  # no version, and the same sum
    model.seen = torch.ones(17)  # another tensor
    assert set(beside.moved()) == {"criterion.centre", "model.seen"}
    kept["means"][0] += 1
    kept["scale"] = 2.0
    # Few numbers that have moved are told from then on: those of a rank may move.
    few = {"criterion.centre", "kept['means'][0]", "kept['scale']"}
    assert set(beside.moved()) == few
    assert set(beside.moved()) == few


def test_places_are_written_in_place() -> None:
    places, array = _beside(nn.Linear(1, 1)).places(), kept["means"][0]
    places["criterion.centre"].write(torch.tensor([3.0, 4.0]))
    places["kept['means'][0]"].write(torch.tensor([5.0, 6.0], dtype=torch.float64))
    places["kept['scale']"].write(torch.tensor(7.0))
    assert criterion.centre.tolist() == [3.0, 4.0]
    assert array.tolist() == [5.0, 6.0]
    assert kept["scale"] == 7.0


def test_the_models_own_tensors_are_not_beside_it() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    holder = SimpleNamespace(loss=lambda o, _: model(o), train_step=None)
    assert not Beside(cast("Target", holder), model, None).places()
