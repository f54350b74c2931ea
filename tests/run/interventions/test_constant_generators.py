"""Draws of numpy and random: constants inside, of the right shapes; real ones after."""

from __future__ import annotations

import random
import tempfile
from typing import Any

import numpy as np
import pytest
from torch import nn

from ddpcheck.run.interventions.constant_generators import constant_generators
from ddpcheck.run.observe import external_state

pytestmark = pytest.mark.usefixtures("seeded", "same_generators")


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
