"""Permutations: recorded, then substituted on a rank; generators are unaffected."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from ddpcheck.run.interventions.substitutes import orders

pytestmark = pytest.mark.usefixtures("seeded", "same_generators")


def _step() -> int:
    return 0


def _drawn(seed: int) -> dict[str, Any]:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    made: dict[str, Any] = {"list": list("abcdefg"), "array": np.arange(6) * 2}
    random.shuffle(made["list"])
    np.random.shuffle(made["array"])  # noqa: NPY002
    made["own"] = list(range(4))
    random.Random(seed).shuffle(made["own"])  # noqa: S311
    made["indices"] = np.random.permutation(5)  # noqa: NPY002
    made["rows"] = rng.permutation(np.array([[1, 2], [3, 4], [5, 6]]))
    made["in place"] = np.arange(8)
    rng.shuffle(made["in place"])
    made["columns"] = rng.permutation(np.arange(12).reshape(2, 6), axis=1)
    made["torch"] = torch.randperm(9, generator=generator)
    last = random.random()  # noqa: S311
    made["then"] = (torch.randn(1, generator=generator), last, rng.random())
    return {name: str(value) for name, value in made.items()}


def test_noting_changes_nothing() -> None:
    plain = _drawn(1)
    with orders.recorded(_step) as known:
        assert _drawn(1) == plain
    assert {size: len(found) for (_, size), found in known.items()} == {
        7: 1,
        6: 1,
        4: 1,
        5: 1,
        3: 1,
        8: 1,
        9: 1,
    }
    with orders.recorded(_step, on=False) as nothing:
        _drawn(1)
    assert not nothing


def test_another_seed_shuffles_alike_and_draws_its_own() -> None:
    with orders.recorded(_step) as known:
        first = _drawn(1)
    second = _drawn(2)
    with orders.substituted(known, _step):
        again = _drawn(2)
    same = {name for name in first if first[name] == again[name]}
    assert same == first.keys() - {"then", "columns"}  # no order of whole things
    assert (again["then"], again["columns"]) == (second["then"], second["columns"])
    assert _drawn(2) == second  # nothing is left behind


def test_what_one_process_has_not_drawn_is_drawn() -> None:
    with orders.substituted({(0, 3): [[2, 0, 1]]}, _step):
        assert torch.randperm(3).tolist() == [2, 0, 1]
        torch.manual_seed(0)
        second = torch.randperm(3)
    torch.manual_seed(0)
    assert torch.equal(second, torch.randperm(3))
