"""Single-process addends of a loss, on ranks that one process plays."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ddpcheck.compare.trace import Reader, Writer
from ddpcheck.run.interventions.substitutes import addends

X = torch.arange(12, dtype=torch.float64).reshape(6, 2).sin()


class Net(nn.Module):
    """Returns rows and a temperature, which is an output without samples."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.utils.skip_init(nn.Linear, 2, 3, dtype=torch.float64)
        for parameter in self.rows.parameters():
            numbers = torch.arange(parameter.numel(), dtype=torch.float64).cos()
            parameter.data.copy_(numbers.reshape_as(parameter))
        self.temperature = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.rows(x), self.temperature * 1


def loss_of(net: nn.Module, x: Tensor) -> Tensor:
    """Returns a mean over samples plus a term that relates them."""
    rows, temperature = net(x)
    spread = (rows / temperature).logsumexp((0, 1))
    value: Tensor = rows.square().sum(1).mean() + 0.5 * spread
    return value


def gradients(net: nn.Module) -> list[Tensor]:
    return [p.grad for p in net.parameters() if p.grad is not None]


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    """Returns the records of one process: two steps, the second with two backwards."""
    writer = Writer(tmp_path / "trace")
    net, now = Net(), [0]
    with addends.recorded(net, writer, lambda: now[0], {}):
        loss_of(net, X).backward()
        now[0] = 1
        loss_of(net, X + 1).backward()
        loss_of(net, X + 2).backward()
    writer.close()
    return Reader(tmp_path / "trace")


def given(reader: Reader, numbers: set[int], sizes: list[int]) -> list[Tensor]:
    """Returns the mean over ranks of the gradients of step 0 with addends given."""
    every, start = [], 0
    for size in sizes:
        net, shard = Net(), (start, size, len(X))
        at = dict.fromkeys(numbers, frozenset[str]())
        ranks = shard, len(sizes)
        with addends.substituted([net], net, reader, lambda: 0, at, *ranks):
            loss_of(net, X[start : start + size]).backward()
        every.append(gradients(net))
        start += size
    return [torch.stack(parts).mean(0) for parts in zip(*every, strict=True)]


@pytest.mark.parametrize(
    ("sizes", "numbers"), [([3, 3], {1}), ([3, 3], {0, 1}), ([3, 2, 1], {0, 1})]
)
def test_ranks_with_what_is_wrong_given_train_as_one_process(
    reader: Reader, sizes: list[int], numbers: set[int]
) -> None:
    net = Net()
    loss_of(net, X).backward()
    found = given(reader, numbers, sizes)
    torch.testing.assert_close(found, gradients(net), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("numbers", [set[int](), {0}])
def test_what_is_not_given_stays_the_ranks_own(
    reader: Reader, numbers: set[int]
) -> None:
    found = given(reader, numbers, [3, 3])
    rows = []
    for shard in X.split(3):
        net = Net()
        loss_of(net, shard).backward()
        rows.append(gradients(net))
    own = [torch.stack(parts).mean(0) for parts in zip(*rows, strict=True)]
    torch.testing.assert_close(found, own, rtol=1e-12, atol=1e-12)


def test_every_backward_of_a_step_has_addends_of_its_own(reader: Reader) -> None:
    net, whole = Net(), Net()
    shard = (0, len(X), len(X))
    at = dict.fromkeys((0, 1), frozenset[str]())
    with addends.substituted([net], net, reader, lambda: 1, at, shard, 1):
        loss_of(net, 0 * X).backward()
        loss_of(net, 0 * X).backward()
    for shift in (1, 2):
        loss_of(whole, X + shift).backward()
    # What comes from the outputs is given, their inputs are the net's own.
    assert net.temperature.grad == pytest.approx(whole.temperature.grad)
    torch.testing.assert_close(net.rows.bias.grad, whole.rows.bias.grad)


def test_nothing_is_left_on_the_model(reader: Reader) -> None:
    net = Net()
    at = {0: frozenset[str]()}
    with addends.substituted([net], net, reader, lambda: 0, at, (0, 3, 6), 2):
        pass
    loss_of(net, X).backward()
    whole = Net()
    loss_of(whole, X).backward()
    torch.testing.assert_close(gradients(net), gradients(whole), rtol=0, atol=0)


class Routed(Net):
    """Returns rows and their balance, from the output of a module within."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found = self.rows(x)
        shares = found.softmax(1)
        return found * shares, shares.mean(0).square().sum()


def routed_loss(net: nn.Module, x: Tensor) -> Tensor:
    rows, spread = net(x)
    value: Tensor = rows.square().sum(1).mean() + 0.5 * spread
    return value


def test_addend_made_within_the_model_is_given_where_it_begins(tmp_path: Path) -> None:
    at = {1: frozenset({"rows#0/output"})}
    writer, whole = Writer(tmp_path / "trace"), Routed()
    with addends.recorded(whole, writer, lambda: 0, at):
        routed_loss(whole, X).backward()
    writer.close()
    reader, found = Reader(tmp_path / "trace"), []
    for start in (0, 3):
        net, shard = Routed(), (start, 3, len(X))
        with addends.substituted([net], net, reader, lambda: 0, at, shard, 2):
            routed_loss(net, X[start : start + 3]).backward()
        found.append(gradients(net))
    mean = [torch.stack(parts).mean(0) for parts in zip(*found, strict=True)]
    torch.testing.assert_close(mean, gradients(whole), rtol=1e-12, atol=1e-12)
