"""Random operations of torch, numpy and random return constants of the right shape."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ddpcheck.run.interventions.constant_draws import ConstantDraws, constant_generators
from ddpcheck.run.observe import external_state

# Real draws advance the generators; the fixtures restore them.
pytestmark = pytest.mark.usefixtures("seeded", "same_generators")


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (lambda: torch.rand(2), [0.5, 0.5]),
        (lambda: torch.rand_like(torch.ones(2)), [0.5, 0.5]),
        (lambda: torch.randn(2), [0.0, 0.0]),
        (lambda: torch.zeros(2).uniform_(3, 4), [0.5, 0.5]),
        (lambda: torch.normal(torch.tensor([2.0, 3.0]), 1.0), [2.0, 3.0]),
        (lambda: torch.bernoulli(torch.tensor([0.1, 0.9])), [1.0, 1.0]),
        (lambda: torch.randint(3, 9, (2,)), [0, 0]),
        (lambda: torch.randperm(3), [0, 1, 2]),
        (lambda: torch.multinomial(torch.tensor([0.1, 0.2, 0.7]), 2), [2, 1]),
        # It drops nothing, and still scales by 1 / (1 - p).
        (lambda: nn.functional.dropout(torch.tensor([2.0, 3.0]), 0.5), [4.0, 6.0]),
    ],
)
def test_draw_is_constant(draw: Callable[[], Tensor], expected: list[float]) -> None:
    with ConstantDraws():
        assert draw().tolist() == expected


def test_dropout_that_drops_nothing_has_a_gradient() -> None:
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    with ConstantDraws():
        nn.functional.dropout(x, 0.5).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0]


def _drawn(seed: int) -> dict[str, Any]:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    rng, own = np.random.default_rng(seed), random.Random(seed)  # noqa: S311
    things = [3, 1, 2]
    own.shuffle(things)
    return {
        "beta": rng.beta(1.0, 3.0),
        "betas": np.random.beta(2.0, 2.0, 3).tolist(),  # noqa: NPY002
        "integers": rng.integers(5, 9, size=(2, 1)).tolist(),
        "one of": rng.integers(7),
        "permutation": rng.permutation(4).tolist(),
        "rows": rng.permutation(np.array([[1, 2], [3, 4]])).tolist(),
        "normal": np.random.normal(2.0, 0.5, size=2).tolist(),  # noqa: NPY002
        "rand": np.random.rand(1, 2).tolist(),  # noqa: NPY002
        "choice": rng.choice(5, 3).tolist(),
        "state": np.random.RandomState(seed).uniform(2.0, 4.0),
        "random": random.random(),  # noqa: S311
        "uniform": own.uniform(1.0, 2.0),
        "sample": random.sample([4, 5, 6], 2),
        "shuffled": things,
    }


def test_every_seed_draws_the_same_constants() -> None:
    with constant_generators(nn.Identity()):
        first, second = _drawn(1), _drawn(2)
    assert first == second
    assert first == {
        "beta": 0.25,
        "betas": [0.5, 0.5, 0.5],
        "integers": [[5], [5]],
        "one of": 0,
        "permutation": [0, 1, 2, 3],
        "rows": [[1, 2], [3, 4]],
        "normal": [2.0, 2.0],
        "rand": [[0.5, 0.5]],
        "choice": [0, 1, 2],
        "state": 3.0,
        "random": 0.5,
        "uniform": 1.5,
        "sample": [4, 5],
        "shuffled": [3, 1, 2],
    }


def test_draws_are_as_before_afterwards() -> None:
    before, own = _drawn(1), dict(vars(random.Random))
    with constant_generators(nn.Identity()):
        pass
    assert _drawn(1) == before
    assert dict(vars(random.Random)) == own


class _Drawing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator, self.python = np.random.default_rng(4), random.Random(5)  # noqa: S311


class _Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.state, self.inner = np.random.RandomState(3), _Drawing()

    def draw(self) -> list[float]:
        """Returns one number of each."""
        inner = self.inner
        return [self.state.randn(), inner.generator.uniform(), inner.python.random()]


def test_generators_that_a_model_holds_draw_constants_and_are_put_back() -> None:
    model, other = _Noisy(), _Noisy()
    with constant_generators(model):
        assert model.draw() == [0.0, 0.5, 0.5]
    assert model.draw() == other.draw()


def test_states_of_generators_that_a_model_holds_tell_of_draws() -> None:
    model = _Noisy()
    assert external_state.generator_states(nn.Identity()) == 0
    seen = [external_state.generator_states(model)]
    for draw in (model.state.rand, model.inner.python.random):
        draw()
        seen.append(external_state.generator_states(model))
    assert len(set(seen)) == 3
    assert external_state.generator_states(_Noisy()) == seen[0]


def test_temporary_files_have_names_of_their_own() -> None:
    made = tempfile.TemporaryDirectory
    with constant_generators(nn.Identity()), made() as first, made() as other:
        assert first != other
