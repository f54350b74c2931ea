"""Writes to a buffer write the single-process value at the end of the step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ddpcheck.compare.trace import Reader, Writer
from ddpcheck.run.interventions.substitutes import substitutes

ENDS = [
    torch.tensor([3.0, 5.0]),
    torch.tensor([4.0, 7.0]),
]  # single-process values by step


class Keeping(nn.Module):
    """Has a buffer."""

    kept: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.ones(2))


class Net(Keeping):
    """Has its own buffer, and one in a module that is not substituted."""

    def __init__(self) -> None:
        super().__init__()
        self.other = Keeping()


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    """Returns a single-process trace of two steps."""
    writer = Writer(tmp_path / "trace")
    for step, end in enumerate(ENDS):
        writer.add("buffers", step, [("kept", end), ("other.kept", end)])
    writer.close()
    return Reader(tmp_path / "trace")


def _add(net: Net) -> None:
    net.kept += 1


def _put(net: Net) -> None:
    net.kept[torch.tensor([1])] = 9


def _average(net: Net) -> None:
    net.kept.mul_(0.5).add_(2)


def _assign(net: Net) -> None:
    net.kept = net.kept * 0.9 + 1


def _each(net: Net) -> None:
    torch._foreach_add_([net.kept], 2)


def _data(net: Net) -> None:
    net.kept.data.copy_(torch.zeros(2))


@pytest.mark.parametrize("write", [_add, _put, _average, _assign, _each, _data])
def test_buffer_has_one_processs_value_once_it_is_written(
    write: Callable[[Net], None], reader: Reader
) -> None:
    net, step = Net(), [0]
    with substitutes.substituted_writes(net, reader, lambda: step[0], {""}):
        assert net.kept.tolist() == [1, 1]
        write(net)
        assert torch.equal(net.kept, ENDS[0])
        step[0] = 1
        write(net)
        assert torch.equal(net.kept, ENDS[1])


def test_other_modules_and_equal_values_are_left_alone(reader: Reader) -> None:
    net = Net()
    with substitutes.substituted_writes(net, reader, lambda: 0, {""}):
        net.other.kept += 1
        net.kept.copy_(torch.ones(2))  # as DDP's broadcast writes it
    assert net.other.kept.tolist() == [2, 2]
    assert net.kept.tolist() == [1, 1]


def test_nothing_is_given_afterwards(reader: Reader) -> None:
    net, assign = Net(), nn.Module.__setattr__
    with substitutes.substituted_writes(net, reader, lambda: 0, {""}):
        assert nn.Module.__setattr__ is not assign
    assert nn.Module.__setattr__ is assign
    _add(net)
    assert net.kept.tolist() == [2, 2]
