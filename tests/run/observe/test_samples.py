"""A number for each sample, by its bytes."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from ddpcheck.run.observe import samples

pytestmark = pytest.mark.usefixtures("seeded")


def test_equal_samples_have_equal_numbers_whatever_is_beside_them() -> None:
    rows = torch.randn(5, 3)
    rows[4] = rows[1]
    numbers = samples.sample_numbers(((rows,), {}))
    assert numbers[4] == numbers[1]
    assert len(set(numbers)) == 4
    assert samples.sample_numbers(rows[1:3]) == numbers[1:3]
    assert samples.sample_numbers((rows, torch.ones(2))) == numbers  # 2 are no samples


@pytest.mark.parametrize(
    "rows",
    [
        torch.arange(6).reshape(2, 3),
        torch.arange(2) == 0,
        torch.randn(2, 3, dtype=torch.complex64),
        torch.randn(2, 3).bfloat16(),
        torch.randn(3, 2).t(),
        torch.randn(2, 2000),
    ],
    ids=lambda t: f"{t.dtype}-{list(t.shape)}",
)
def test_all_kinds_of_tensors_are_told_apart(rows: torch.Tensor) -> None:
    first, second = samples.sample_numbers([rows])
    assert first != second
    assert samples.sample_numbers([rows[1:]]) == (second,)


def test_without_samples_there_are_no_numbers() -> None:
    assert samples.sample_numbers(("text", torch.tensor(1.0))) == ()
    assert len(samples.sample_numbers(torch.ones(3, 0))) == 3
    sparse = torch.eye(3).to_sparse()
    assert samples.sample_numbers(sparse) == ()


def test_calls_with_gradients_are_told_until_it_ends() -> None:
    model = nn.Linear(3, 1)
    told: list[samples.Numbers] = []
    watching = samples.watch_samples(model, told.append)
    rows = torch.randn(2, 3)
    model(input=rows)
    with torch.no_grad():
        model(rows)
    torch.func.vmap(model)(rows)
    watching.remove()
    model(rows)
    assert told == [samples.sample_numbers(rows)]


class Nested(nn.Module):
    """A model whose call calls it again, as Lightning's does in training_step."""

    def forward(self, rows: torch.Tensor, *, again: bool = False) -> torch.Tensor:
        made: torch.Tensor = self(rows * 2) if again else rows
        return made


def test_call_that_a_model_makes_of_itself_is_not_told() -> None:
    model, rows = Nested(), torch.randn(2, 3)
    told: list[samples.Numbers] = []
    samples.watch_samples(model, told.append)
    model(rows, again=True)
    model(rows)
    assert told == [samples.sample_numbers((rows,))] * 2


def test_a_watched_model_is_copied_and_saved() -> None:
    model = nn.Linear(3, 1)
    told: list[samples.Numbers] = []
    samples.watch_samples(model, told.append)
    pickle.loads(pickle.dumps(model))(torch.ones(1, 3))  # noqa: S301
    assert not told
    copy.deepcopy(model)(torch.ones(1, 3))
