"""Draws of numpy and random: constants inside, of the right shapes; real ones after."""

from __future__ import annotations

import random
import tempfile
from typing import Any

import numpy as np
import pytest

from ddpcheck.run.fixes.constant_generators import constant_generators

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
    with constant_generators():
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
    with constant_generators():
        pass
    assert _drawn(1) == before
    assert dict(vars(random.Random)) == own


def test_temporary_files_have_names_of_their_own() -> None:
    made = tempfile.TemporaryDirectory
    with constant_generators(), made() as first, made() as other:
        assert first != other
