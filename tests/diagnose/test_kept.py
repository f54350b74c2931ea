"""What a loss, a step or a module keeps is put back; what is not plain data stays."""

from __future__ import annotations

import collections
import random
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ddpcheck.diagnose.probes.kept import Kept
from ddpcheck.target.target import Target

pytestmark = pytest.mark.usefixtures("seeded")
SMOOTHED = 1.0
NEW: float
SEEN: list[int] = []


class _Inner:
    def __init__(self) -> None:
        self.history = collections.deque([1, 2], maxlen=2)
        self.table = {"a": [1]}


class _Loss:
    """A loss with a memory of every kind."""

    def __init__(self) -> None:
        self.value: float | None = None
        self.inner = _Inner()
        self.centres = torch.zeros(2, 3)
        self.array = np.zeros(2)
        self.classes = {1}
        self.generator = torch.Generator().manual_seed(5)
        self.random = random.Random(5)  # noqa: S311

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        del target
        self.value = 3.0
        self.new = [7]
        self.inner.history.append(3)
        self.inner.table["a"].append(2)
        self.inner.table["b"] = []
        self.centres += 1
        self.array += 1
        self.classes.add(2)
        torch.rand(2, generator=self.generator)
        self.random.random()
        return output.sum()

    def told(self) -> list[Any]:
        """Returns all that is kept, as plain data."""
        return [
            self.value,
            "new" in vars(self),
            list(self.inner.history),
            self.inner.table,
            self.centres.tolist(),
            self.array.tolist(),
            self.classes,
            self.generator.get_state().tolist(),
            self.random.getstate(),
        ]


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.calls = 0
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.kept = self.linear(x)
        return self.kept


def _target(**kept: Any) -> Target:
    return Target(name="mine.py", model=_Model, batch=None, **kept)


def _global(output: Tensor, _: Tensor) -> Tensor:
    global SMOOTHED, NEW
    SMOOTHED, NEW = 0.9 * SMOOTHED, 1.0
    SEEN.append(1)
    return output.sum()


def _closed() -> Callable[[Tensor, Tensor], Tensor]:
    count, sums = 0, {"all": 0.0}

    def loss(output: Tensor, _: Tensor) -> Tensor:
        nonlocal count
        count += 1
        sums["all"] += count
        return output.sum() * sums["all"]

    return loss


def test_memory_of_a_loss_of_any_class_is_put_back() -> None:
    loss = _Loss()
    before = loss.told()
    before[3] = {"a": [1]}  # it is one dict, before and after
    before[6] = {1}
    kept = Kept(_target(loss=loss), _Model())
    for _ in range(2):
        loss(torch.ones(2), torch.ones(2))
        kept.put_back()
        assert loss.told() == before


def test_globals_and_closures_are_put_back() -> None:
    closed = _closed()
    kept = Kept(_target(loss=_global, train_step=closed), _Model())
    for _ in range(2):
        _global(torch.ones(2), torch.ones(2))
        assert float(closed(torch.ones(1), torch.ones(1))) == 1.0
        kept.put_back()
        assert (SMOOTHED, SEEN, "NEW" in globals()) == (1.0, [], False)


def test_method_of_an_object_is_put_back() -> None:
    loss = _Loss()
    kept = Kept(_target(loss=types.MethodType(_Loss.__call__, loss)), _Model())
    loss(torch.ones(2), torch.ones(2))
    kept.put_back()
    assert loss.value is None


def test_attributes_that_are_only_shown_end_nothing() -> None:
    class Shown(_Loss):
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            return types.MappingProxyType({"value": 1.0})

    seen = len(SEEN)
    kept = Kept(_target(loss=Shown(), train_step=_global), _Model())
    _global(torch.ones(2), torch.ones(2))
    kept.put_back()
    assert len(SEEN) == seen


def test_attributes_of_modules_are_put_back_and_hooks_stay() -> None:
    model = _Model()
    kept = Kept(_target(), model)
    called: list[int] = []
    model.register_forward_hook(lambda *_: called.append(1))
    model(torch.ones(1, 2))
    kept.put_back()
    assert (model.calls, model.kept) == (0, None)
    model(torch.ones(1, 2))
    assert called == [1, 1]


def test_weights_of_a_loss_are_put_back_and_remain_the_same_tensors() -> None:
    centres = nn.Linear(2, 1)
    kept = Kept(_target(loss=lambda o, t: centres(o - t).sum()), _Model())
    weight, values = centres.weight, centres.weight.tolist()
    with torch.no_grad():
        centres.weight.mul_(2)
    kept.put_back()
    assert centres.weight is weight
    assert weight.requires_grad
    assert weight.tolist() == values


@pytest.mark.parametrize("size", [3, 5])
def test_tensor_that_has_grown_is_put_back(size: int) -> None:
    queue = torch.zeros(4)

    def loss(output: Tensor, _: Tensor) -> Tensor:
        queue.data = torch.ones(size)
        return output.sum()

    kept = Kept(_target(loss=loss), _Model())
    loss(torch.ones(2), torch.ones(2))
    kept.put_back()
    assert queue.tolist() == [0, 0, 0, 0]


class _Frozen(dict[str, int]):
    """A configuration that refuses to be written, but not to be cleared."""

    def update(self, *_: Any, **__: Any) -> None:
        """Refuses."""
        raise TypeError

    def copy(self) -> dict[str, int]:
        """Returns a plain copy, as dict's own does."""
        return dict(self)


def test_container_that_refuses_to_be_written_is_left_alone() -> None:
    class Net(nn.Module):
        config = _Frozen(width=3)

        def __init__(self) -> None:
            super().__init__()
            self.internal = self.config
            self.history: list[int] = []

        def forward(self, x: Tensor) -> Tensor:
            self.history.append(1)
            return x

    net = Net()
    kept = Kept(Target(name="t", model=lambda: net, batch=lambda: None), net)
    net(torch.zeros(1))
    kept.put_back()
    assert (net.internal, net.history) == ({"width": 3}, [])
