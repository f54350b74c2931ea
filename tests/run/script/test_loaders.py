"""Which loaders of a script are watched, and that nothing stays of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from ddpcheck.run.script.loaders import Loaders

pytestmark = pytest.mark.usefixtures("seeded")  # a pass draws a seed
DATA = TensorDataset(torch.arange(6.0))


class Own(DataLoader[Any]):
    """Makes its iterators itself, as torchdata's StatefulDataLoader does."""

    def __iter__(self) -> Any:
        return self._get_iterator()


class Doubled(DataLoader[Any]):
    """Changes what its base class yields."""

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield [2 * batch[0]]


class Watch:
    """Notes the passes over loaders, and lets them be."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int]] = []  # (loader, pass)
        self.loaders = Loaders(self._begin)

    def _begin(self, loader: Any, number: int, turn: int) -> Iterator[Any]:
        self.begun.append((number, turn))
        return iter(self.loaders.original(loader))


def _drawn(loader: DataLoader[Any]) -> list[list[float]]:
    return [batch[0].tolist() for batch in loader]


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (DataLoader, [[0, 1, 2], [3, 4, 5]]),
        (Own, [[0, 1, 2], [3, 4, 5]]),
        (Doubled, [[0, 2, 4], [6, 8, 10]]),
    ],
)
def test_each_pass_is_seen_once(
    cls: type[DataLoader[Any]], expected: list[list[float]]
) -> None:
    watch = Watch()
    with watch.loaders.watched():
        one, two = cls(DATA, batch_size=3), cls(DATA, batch_size=3)
        drawn = [_drawn(loader) for loader in (one, two, one)]
    assert drawn == [expected] * 3
    assert watch.begun == [(0, 0), (1, 0), (0, 1)]
    assert watch.loaders.are_used


def test_class_that_is_made_later_is_seen() -> None:
    watch = Watch()
    with watch.loaders.watched():

        class Later(Own):
            def __iter__(self) -> Any:
                return self._get_iterator()

        assert len(_drawn(Later(DATA, batch_size=3))) == 2
    assert watch.begun == [(0, 0)]


def test_last_watch_sees_the_loaders_and_leaves_them_as_they_were() -> None:
    before = [DataLoader.__iter__, Own.__iter__, Doubled.__iter__]
    first, second = Watch(), Watch()
    with first.loaders.watched():
        second.loaders = Loaders(lambda *_: iter([DATA.tensors]))
        with second.loaders.watched():
            assert len(_drawn(Own(DATA, batch_size=3))) == 1
        _drawn(Own(DATA, batch_size=3))
    assert first.begun == [(0, 0)]
    assert [DataLoader.__iter__, Own.__iter__, Doubled.__iter__] == before
    assert "__init_subclass__" not in vars(DataLoader)
