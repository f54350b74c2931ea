"""Items of a rank's list are compared with those of its own samples."""

from __future__ import annotations

import pytest

from ddpcheck.run.record import pairing

_TWO_OF_SIX = (2, 2, 6)


def _of(count: int, *ends: str) -> list[str]:
    return [f"{number}{end}" for number in range(count) for end in ends]


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        (["0", "1"], _of(6, ""), {"0": "2", "1": "3"}),
        (
            ["found.0.box", "found.1.box", "score"],
            [*(f"found.{n}.box" for n in range(6)), "score"],
            {"found.0.box": "found.2.box", "found.1.box": "found.3.box"},
        ),
        (
            _of(2, ".0", ".1"),
            _of(6, ".0", ".1"),
            {p: f"{int(p[0]) + 2}{p[1:]}" for p in _of(2, ".0", ".1")},
        ),
        (["0", "1"], ["0", "1"], {}),  # two outputs, as in the single process
        (["0", "1", "2"], _of(6, ""), {}),
        (["0", "2"], _of(6, ""), {}),
        (["logits"], ["logits"], {}),
    ],
    ids=["list", "list next to a tensor", "pairs", "pair", "three", "gap", "tensor"],
)
def test_counterpart_is_the_item_of_the_same_sample(
    mine: list[str], theirs: list[str], expected: dict[str, str]
) -> None:
    assert pairing.counterparts(mine, theirs, _TWO_OF_SIX) == expected


def test_whole_batch_has_its_own_items() -> None:
    assert pairing.counterparts(["0", "1"], ["0", "1"], (0, 2, 2)) == {}


def test_paths_are_those_of_the_lists() -> None:
    mine = ["a.0", "a.1", "b.c.0.x", "b.c.1.x", "d"]
    theirs = [*(f"a.{n}" for n in range(6)), *(f"b.c.{n}.x" for n in range(6)), "d"]
    assert pairing.of_samples(mine, theirs, _TWO_OF_SIX) == {"a", "b.c"}
