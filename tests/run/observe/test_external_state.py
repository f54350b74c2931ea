"""External state: found by name, reported when it changes, written in place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ddpcheck.run.observe.external_state import ExternalState, keys_of_weights
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


def _beside(model: nn.Module) -> ExternalState:
    target = cast("Target", SimpleNamespace(loss=_loss, train_step=None))
    return ExternalState(target, model, None)


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
    optimizer.step()  # has its own state now
    setattr(optimizer, "control", SimpleNamespace(scale=0.5, step=3))  # noqa: B010
    target = cast("Target", SimpleNamespace(loss=None, train_step=None))
    places = ExternalState(target, model, optimizer).places()
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
    # A few changed numbers are reported from then on: those of a rank may change.
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
    assert not ExternalState(cast("Target", holder), model, None).places()


pytestmark = pytest.mark.usefixtures("seeded")


def _keys(held: Any, model: nn.Module) -> set[Any]:
    return keys_of_weights(held, dict(model.named_parameters()))


def _model() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    model[1].weight.requires_grad_(False)
    return model


def _moved(model: nn.Module, by: float) -> dict[str, torch.Tensor]:
    return {n: p.detach() * (1 + by) for n, p in model.named_parameters()}


@pytest.mark.parametrize("prefix", ["", "module."])
def test_copies_are_known_by_the_names_of_parameters(prefix: str) -> None:
    model = _model()
    held: dict[Any, Any] = {prefix + n: t for n, t in _moved(model, 0.4).items()}
    held |= {"step": torch.ones(()), 3: torch.ones(3), prefix + "0.scale": 1.0}
    names = {prefix + n for n in ("0.weight", "0.bias", "1.weight", "1.bias")}
    assert _keys(held, model) == names


def test_copies_are_known_by_the_order_of_parameters_or_of_trained_ones() -> None:
    model = _model()
    every = list(_moved(model, -0.4).values())
    assert _keys(every, model) == {0, 1, 2, 3}
    assert _keys(tuple(every[:2] + every[3:]), model) == {0, 1, 2}
    assert _keys(every[:2], model) == set()
    assert _keys(every[::-1], model) == set()


def test_what_is_far_from_the_weights_is_no_copy() -> None:
    model = _model()
    assert _keys(_moved(model, 0.6), model) == set()  # 0.36 of the square
    weights = dict(model.named_parameters())
    assert _keys(weights, model) == set()  # itself
    assert _keys({}, model) == set()


def test_weights_of_zeros_tell_nothing() -> None:
    model = nn.Linear(2, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    assert _keys(_moved(model, 0.0), model) == set()


def test_what_is_much_longer_is_not_looked_into() -> None:
    model = _model()
    held: dict[Any, Any] = dict(_moved(model, 0.1))
    held |= {f"word{number}": number for number in range(12)}
    assert len(_keys(held, model)) == 4  # 16 entries, of 4 parameters
    held["word"] = 12
    assert _keys(held, model) == set()
