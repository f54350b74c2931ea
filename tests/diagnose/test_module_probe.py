"""What is measured of one module, by its own forward."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from ddpcheck.diagnose.probes import modules

ROWS = torch.tensor([[3.0, -4.0], [0.5, 2.0], [1.0, -1.0]])


class Directions(nn.Module):
    """A loss that does not change with scale: no norm."""

    def forward(self, x: Tensor) -> Tensor:
        """Returns a scalar."""
        return nn.functional.normalize(x).sum()


class Counting(nn.Module):
    """Divides by what it has counted."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(5.0))

    def forward(self, x: Tensor) -> Tensor:
        """Counts in training."""
        if self.training:
            self.count += len(x)
        return x / self.count


class Renorm(nn.Module):
    """Batch renormalisation: constants bring the running scale back (1702.03275)."""

    running_std: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running_std", torch.tensor([3.0, 0.5]))

    def forward(self, x: Tensor) -> Tensor:
        """Normalises by the batch, scales to the running statistics."""
        mean, std = x.mean(0), x.std(0)
        return (x - mean) / std * (std / self.running_std).detach() + mean.detach()


class Centred(nn.Module):
    """Grows with its input."""

    def forward(self, x: Tensor) -> Tensor:
        """Returns the input without its mean."""
        return x - x.mean(0)


@pytest.mark.parametrize("repeats", [1, 400])
@pytest.mark.parametrize(
    ("module", "scale", "slope"),
    [
        (nn.BatchNorm1d(2), True, True),
        (Renorm(), False, True),
        (Directions(), False, False),
        (nn.Identity(), False, False),
        (Centred(), False, False),
        (nn.Tanh(), False, False),
    ],
    ids=["norm", "renorm", "loss", "identity", "centred", "tanh"],
)
def test_norms_are_what_returns_rows_of_one_scale(
    module: nn.Module, repeats: int, *, scale: bool, slope: bool
) -> None:
    inputs = ROWS.repeat(repeats, 1)
    state = torch.get_rng_state()
    assert modules.is_scale_invariant(module, (inputs,), {}) is scale
    assert modules.has_slope_across(module, (inputs,), {}) is slope
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("module", [nn.BatchNorm1d(2), nn.Identity()])
def test_module_is_called_as_often_whatever_it_returns(module: nn.Module) -> None:
    # One that communicates would wait for ranks on which it is another.
    called = mock.Mock(wraps=module.forward)
    with mock.patch.object(module, "forward", called):
        modules.is_scale_invariant(module, (ROWS,), {})
    assert called.call_count == 4


class Codes(nn.Module):
    """Looks up what is closest to the direction of each row, and moves its codes."""

    table: Tensor

    def __init__(self, *, through: bool) -> None:
        super().__init__()
        self.register_buffer("table", 3 * torch.eye(2))
        self.through = through

    def forward(self, x: Tensor) -> Tensor:
        """Returns codes, with a straight-through gradient or as they are."""
        found = self.table[(x @ self.table).argmax(1)]
        self.table += 0.1
        return x + (found - x).detach() if self.through else found


class CodesOfAnImage(nn.Module):
    """The same at every place of an image, with the codes in a part of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(3 * torch.eye(2))

    def forward(self, rows: Tensor) -> Tensor:
        """Returns codes in the channels."""
        places = rows.reshape(1, 2, 1, 3)
        codes: Tensor = self.table(places.argmax(1))
        return codes.movedim(-1, 1)


class Signs(nn.Module):
    """A norm whose outputs are few values."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running", torch.zeros(2))
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        """Returns -1 and 1."""
        return ((x - x.mean(0)) / x.std(0) * self.weight).sign()


@pytest.mark.parametrize(
    ("module", "is_lookup"),
    [
        (nn.BatchNorm1d(2), False),
        (nn.Sequential(nn.BatchNorm1d(2), nn.ReLU()), False),
        (Signs(), False),
        (Codes(through=False), True),
        (Codes(through=True), True),
        (CodesOfAnImage(), True),
    ],
    ids=["norm", "rectified", "signs", "codes", "straight-through", "image"],
)
def test_rows_of_a_table_are_looked_up(module: nn.Module, *, is_lookup: bool) -> None:
    assert modules.looks_up(module, (ROWS,), {}) is is_lookup


def test_module_is_evaluated_with_other_buffers_and_left_as_it_was() -> None:
    module = Counting()
    given: dict[str, Tensor | None] = {"count": torch.tensor(2.0)}
    outputs = modules.evaluated(module, (ROWS,), {}, given)
    assert outputs is not None
    assert torch.equal(outputs[0][1], ROWS / 2)
    assert module.training
    assert module.count == 5


def test_parts_of_an_evaluated_module_train_and_are_left_as_they_were() -> None:
    part = nn.BatchNorm1d(2)
    module = nn.Sequential(part)
    module.register_buffer("other", torch.zeros(1))
    outputs = modules.evaluated(module, (ROWS,), {}, {"other": torch.ones(1)})
    assert outputs is not None
    assert torch.equal(outputs[0][1], nn.BatchNorm1d(2)(ROWS))
    assert module.training
    assert part.training
    assert part.num_batches_tracked == 0


@pytest.mark.parametrize(
    ("buffers", "are_the_same"),
    [
        ({"count": torch.tensor(5.0)}, True),
        ({"count": None}, True),
        ({"count": torch.tensor(2.0)}, False),
    ],
)
def test_buffers_are_compared_where_they_are_known(
    buffers: dict[str, Tensor | None], *, are_the_same: bool
) -> None:
    assert modules.has_buffers(Counting(), buffers) is are_the_same


@pytest.mark.parametrize(
    ("module", "buffers"),
    [
        (Counting(), {"count": None}),
        (Counting(), {"count": torch.zeros(3)}),
    ],
    ids=["unknown", "shape"],
)
def test_module_that_cannot_be_evaluated_alone_is_not(
    module: nn.Module, buffers: dict[str, Tensor | None]
) -> None:
    assert modules.evaluated(module, (ROWS,), {}, buffers) is None
