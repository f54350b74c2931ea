"""The one definition of excess: exact numbers, and the laws it keeps."""

from __future__ import annotations

import math
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ddpcheck.compare import comparison as compare
from ddpcheck.compare import digests, tolerance
from ddpcheck.report.data import Difference, Quantity
from ddpcheck.run.session import agreement

Named = dict[str, Tensor | None]

VALUES = st.floats(-1e6, 1e6, allow_nan=False, width=64)
ROWS = st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=12)
RTOLS = st.floats(1e-12, 1e-1)
# References, and how many tolerances a candidate is away: some too far, most not.
NEAR = st.lists(
    st.tuples(VALUES, st.just(0.0) | st.floats(-1.3, 1.3)), min_size=1, max_size=12
)


def _pair(rows: list[tuple[float, float]]) -> tuple[Tensor, Tensor]:
    table = torch.tensor(rows, dtype=torch.float64)
    return table[:, 0], table[:, 1]


def _scale(tensor: Tensor) -> float:
    return max(1e-3, float(tensor.abs().max()))


def _group(candidates: Named, references: Named, rtol: float = 0.01) -> Quantity:
    return compare.compare_group(
        candidates, references, rtol=rtol, scale=2.0, step=1, rank=3
    )


def test_difference_of_asymmetric_tensors_is_exact() -> None:
    row = compare.difference(
        torch.tensor([1.0, 4.5, -8.0]),
        torch.tensor([1.0, 4.0, -8.0]),
        rtol=0.25,
        scale=8.0,
        name="w",
        step=2,
        rank=1,
    )
    assert (row.name, row.step, row.rank, row.why) == ("w", 2, 1, None)
    assert row.abs_diff == 0.5
    assert row.rel_diff == 0.5 / 8
    assert row.excess == 0.5 / (0.25 * 8 + 0.25 * 4)
    assert row.ratio == (1 + 4.5 * 4 + 64) / (1 + 16 + 64)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_whole_numbers_have_no_rounding(dtype: torch.dtype) -> None:
    cand, ref = torch.tensor([1, 0]).to(dtype), torch.tensor([1, 1]).to(dtype)
    row = compare.difference(cand, ref, rtol=0.5, scale=1e9)
    assert (row.abs_diff, row.excess) == (1.0, math.inf)
    assert compare.difference(ref, ref, rtol=0.5, scale=1e9).excess == 0.0


def test_large_whole_numbers_are_distinguished() -> None:
    ref = torch.tensor([2**60])  # float64 has no number between it and the next 256
    assert compare.difference(ref + 1, ref, rtol=1e-9, scale=0.0).excess == math.inf


def test_difference_is_not_symmetric_in_its_sides() -> None:
    small, large = torch.tensor([1.0]), torch.tensor([3.0])
    one = compare.difference(small, large, rtol=1.0, scale=0.0)
    other = compare.difference(large, small, rtol=1.0, scale=0.0)
    assert (one.excess, other.excess) == (2 / 3, 2.0)


def test_worst_element_is_worst_by_excess_and_not_by_difference() -> None:
    candidate = torch.tensor([110.0, 0.5], dtype=torch.float64)
    reference = torch.tensor([100.0, 0.0], dtype=torch.float64)
    row = compare.difference(candidate, reference, rtol=1.0, scale=0.1)
    assert row.abs_diff == 10
    assert row.excess == 0.5 / 0.1


def test_difference_in_bfloat16_is_taken_in_float64() -> None:
    candidate = torch.tensor([1.0078125], dtype=torch.bfloat16)
    reference = torch.tensor([1.0], dtype=torch.bfloat16)
    row = compare.difference(candidate, reference, rtol=1.0, scale=0.0)
    assert row.abs_diff == 0.0078125


def test_complex_tensors_are_compared_part_by_part() -> None:
    candidate, reference = torch.tensor([1 + 2j]), torch.tensor([1 + 1j])
    row = compare.difference(candidate, reference, rtol=1.0, scale=0.0)
    assert row.excess == 1.0


def test_another_shape_is_a_mismatch() -> None:
    row = compare.difference(torch.zeros(2, 3), torch.zeros(3, 2), rtol=1, scale=1)
    assert row.excess == math.inf
    assert row.why == "shape (2, 3), expected (3, 2)"


def test_nan_on_one_side_is_a_mismatch() -> None:
    nan = torch.tensor([1.0, math.nan])
    row = compare.difference(nan, torch.ones(2), rtol=1, scale=1)
    assert (row.excess, row.why) == (math.inf, "NaN")


def test_nan_at_the_same_place_on_both_sides_is_equal() -> None:
    nan = torch.tensor([1.0, math.nan])
    row = compare.difference(nan, nan.clone(), rtol=1e-9, scale=1)
    assert (row.excess, row.why) == (0.0, None)


def test_infinity_against_a_number_is_a_mismatch() -> None:
    infinite = torch.tensor([math.inf, 1.0])
    row = compare.difference(infinite, torch.ones(2), rtol=1, scale=1)
    assert row.excess == math.inf


@pytest.mark.parametrize(
    ("candidate", "reference", "excess"),
    [
        (5.0, math.inf, math.inf),
        (-math.inf, math.inf, math.inf),
        (-math.inf, -math.inf, 0.0),
    ],
    ids=["finite", "opposite", "equal"],
)
def test_infinite_reference_equals_only_itself(
    candidate: float, reference: float, excess: float
) -> None:
    row = compare.difference(
        torch.tensor([candidate, 1.0]),
        torch.tensor([reference, 1.0]),
        rtol=1.0,
        scale=1.0,
    )
    assert row.excess == excess
    assert row.ratio == 1.0


def test_difference_at_zero_tolerance_and_scale_is_a_mismatch() -> None:
    row = compare.difference(torch.ones(1), torch.zeros(1), rtol=0.0, scale=0.0)
    assert row.excess > 1


def test_group_counts_missing_none_and_extra_tensors() -> None:
    references: Named = {
        "same": torch.tensor([2.0]),
        "gone": torch.tensor([1.0]),
        "was None": None,
        "both None": None,
    }
    candidates: Named = {
        "same": torch.tensor([2.0]),
        "was None": torch.tensor([1.0]),
        "both None": None,
        "new": torch.tensor([1.0]),
    }
    found = _group(candidates, references)
    assert (found.compared, found.mismatched) == (4, 3)
    why = {row.name: row.why for row in found.tensors}
    assert why == {
        "gone": "missing in the candidate",
        "new": "missing in the reference",
        "was None": "missing in the reference",
        "same": None,
    }


def test_group_is_ranked_by_excess_then_name() -> None:
    references: Named = {name: torch.tensor([1.0]) for name in "badc"}
    candidates: Named = {
        "b": torch.tensor([2.0]),
        "a": torch.tensor([2.0]),
        "d": torch.tensor([9.0]),
        "c": torch.tensor([1.0]),
    }
    found = _group(candidates, references)
    assert [row.name for row in found.tensors] == ["d", "a", "b", "c"]
    assert found.worst is not None
    assert (found.worst.name, found.worst.rank, found.worst.step) == ("d", 3, 1)


def test_empty_groups_compare_nothing() -> None:
    found = _group({}, {})
    assert (found.compared, found.mismatched, found.worst) == (0, 0, None)


@pytest.mark.parametrize(
    ("candidates", "references", "name"),
    [
        ({"w": None}, {"w": torch.ones(1)}, "w"),
        ({"w": torch.ones(1)}, {"w": None}, "w"),
        ({"w": torch.ones(2)}, {"w": torch.ones(1)}, "w"),
        ({"v": torch.ones(1), "w": torch.ones(1)}, {"w": torch.ones(1)}, "v"),
        ({}, {"w": torch.ones(1)}, "w"),
    ],
    ids=["none", "not none", "shape", "extra", "missing"],
)
def test_is_equal_sees_what_is_not_a_number(
    candidates: Named, references: Named, name: str
) -> None:
    found = compare.is_equal(candidates, references, rtol=1, scale=1)
    assert found == (False, math.inf, name)


def test_is_equal_names_the_worst_tensor() -> None:
    references: Named = {"a": torch.ones(2), "b": torch.ones(3), "c": torch.ones(1)}
    candidates: Named = {
        "a": torch.ones(2),
        "b": torch.tensor([1.0, 1.25, 1.0]),
        "c": torch.ones(1),
    }
    found = compare.is_equal(candidates, references, rtol=0.5, scale=1.0)
    assert found == (True, 0.25, "b")


@given(st.lists(NEAR, min_size=1, max_size=6), RTOLS, st.integers(1, 5))
def test_is_equal_is_the_worst_difference_however_tensors_are_cut(
    tables: list[list[tuple[float, float]]], rtol: float, chunk: int
) -> None:
    pairs = {f"t{i}": _pair(rows) for i, rows in enumerate(tables)}
    scale = max(_scale(r) for r, _ in pairs.values())
    references: Named = {name: r for name, (r, _) in pairs.items()}
    candidates: Named = {
        name: r + far * rtol * scale for name, (r, far) in pairs.items()
    }
    rows = {
        name: compare.compare_group(
            {name: candidates[name]}, {name: r}, rtol=rtol, scale=scale, step=0
        ).excess_by_step[0]
        for name, (r, _) in pairs.items()
    }
    with mock.patch.object(compare, "_CHUNK", chunk):
        equal, worst, name = compare.is_equal(
            candidates, references, rtol=rtol, scale=scale
        )
    assert equal == (max(rows.values()) <= 1)
    if equal:
        assert worst == rows[name] == max(rows.values())
    else:
        assert rows[name] > 1


def test_is_equal_refuses_nan_on_one_side() -> None:
    equal, _, _ = compare.is_equal(
        {"w": torch.tensor([math.nan])}, {"w": torch.ones(1)}, rtol=1, scale=1
    )
    assert not equal


@given(ROWS)
def test_tensor_matches_itself_at_zero_tolerance(
    rows: list[tuple[float, float]],
) -> None:
    tensor, _ = _pair(rows)
    row = compare.difference(tensor, tensor.clone(), rtol=0.0, scale=0.0)
    assert (row.abs_diff, row.excess) == (0.0, 0.0)
    assert compare.is_equal({"w": tensor}, {"w": tensor}, rtol=0.0, scale=0.0)[0]


@given(ROWS, RTOLS, st.floats(1.0, 1e6))
def test_widening_the_tolerance_never_makes_a_mismatch(
    rows: list[tuple[float, float]], rtol: float, factor: float
) -> None:
    candidate, reference = _pair(rows)
    scale = _scale(reference)
    narrow = compare.difference(candidate, reference, rtol=rtol, scale=scale)
    wide = compare.difference(candidate, reference, rtol=rtol * factor, scale=scale)
    assert wide.excess <= narrow.excess * (1 + 1e-12)


@given(ROWS, RTOLS, st.floats(1.0, 1e6))
def test_excess_is_inversely_proportional_to_rtol(
    rows: list[tuple[float, float]], rtol: float, factor: float
) -> None:
    candidate, reference = _pair(rows)
    scale = _scale(reference)
    narrow = compare.difference(candidate, reference, rtol=rtol, scale=scale)
    wide = compare.difference(candidate, reference, rtol=rtol * factor, scale=scale)
    assert wide.excess * factor == pytest.approx(narrow.excess, rel=1e-9)


@given(ROWS, RTOLS, st.randoms(use_true_random=False), st.integers(0, 12))
def test_splitting_and_reordering_tensors_changes_no_verdict(
    rows: list[tuple[float, float]], rtol: float, random: object, cut: int
) -> None:
    candidate, reference = _pair(rows)
    scale = _scale(reference)
    whole = compare.difference(candidate, reference, rtol=rtol, scale=scale)
    parts = {"a": slice(0, cut), "b": slice(cut, None)}
    names = sorted(parts)
    random.shuffle(names)  # type: ignore[attr-defined]
    candidates: Named = {n: candidate[parts[n]] for n in names}
    references: Named = {n: reference[parts[n]] for n in sorted(parts)}
    split = compare.compare_group(
        candidates, references, rtol=rtol, scale=scale, step=0
    )
    assert split.worst is not None
    assert split.worst.excess == whole.excess
    equal, worst, _ = compare.is_equal(candidates, references, rtol=rtol, scale=scale)
    assert equal == (whole.excess <= 1)
    assert worst == whole.excess if equal else worst > 1


@given(ROWS)
def test_digest_of_equal_tensors_is_equal(rows: list[tuple[float, float]]) -> None:
    one, two = _pair(rows)
    named: Named = {"one": one, "none": None, "two": two}
    again: Named = {name: t if t is None else t.clone() for name, t in named.items()}
    assert digests.digest(named) == digests.digest(again)


def test_digest_is_the_weighted_sums_however_many_elements_are_laid_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = torch.tensor([1.0, 2.0, -3.0]), torch.tensor([[4.0], [8.0]])
    named: Named = {"a": a, "none": None, "empty": a[:0], "b": b}
    # Positions 1 and 4; the first halves are 1.0 and 4.0.
    expected = (0 + 1 + 4 * 12 + 4, 14 + 4 * 80, 6 + 14 + 4 * (12 + 80))
    assert digests.digest(named) == expected
    monkeypatch.setattr(digests, "_FEW", 0)
    assert digests.digest(named) == expected
    assert digests.digest({"none": None}) == (0.0, 0.0, 0.0)


def test_digest_needs_no_default_device() -> None:
    one = torch.tensor([1.0, 2.0])
    with torch.device("meta"):
        assert digests.digest({"one": one}) == (3 + 1, 5, 3 + 5)


def test_digest_distinguishes_swapped_tensors_and_elements() -> None:
    one, two = torch.tensor([1.0, 2.0]), torch.tensor([4.0, 8.0])
    found = {
        digests.digest({"a": one, "b": two})[:2],
        digests.digest({"a": two, "b": one})[:2],
        digests.digest({"a": one.flip(0), "b": two})[:2],
        digests.digest({"a": one, "b": None})[:2],
    }
    assert len(found) == 4


@pytest.mark.parametrize(
    "number", [math.inf, -math.inf, math.nan, torch.finfo(torch.float64).min]
)
def test_digest_of_what_is_not_finite_can_be_compared(number: float) -> None:
    tensor = torch.tensor([0.0, number, 1.0, -number, number, 2.0], dtype=torch.float64)
    other = tensor.clone()
    other[1] = 0.0
    one, again, two = (
        digests.digest({"w": t}) for t in (tensor, tensor.clone(), other)
    )
    assert all(math.isfinite(value) for value in one)
    assert tolerance.digests_agree([one, again], 1e-9)
    assert not tolerance.digests_agree([one, two], 1e-9)


@pytest.mark.parametrize(
    ("ratios", "excess", "expected"),
    [
        ((0.7, 1.3), 200.0, False),
        ((0.7, 0.7 + 1e-12), 200.0, True),
        ((0.7, 1.3), 90.0, True),  # rounding is not far below
        ((0.7, None), 200.0, True),
    ],
)
def test_small_tensors_are_compared_by_how_far_they_are_off(
    ratios: tuple[float | None, ...],
    excess: float,
    expected: bool,  # noqa: FBT001
) -> None:
    ranks = [
        {
            "w": Difference(
                name="w", step=0, abs_diff=0.3, rel_diff=0.3, excess=excess, ratio=ratio
            )
        }
        for ratio in ratios
    ]
    assert agreement.are_off_alike(ranks) is expected
    assert agreement.are_off_alike([*ranks, {}])


def test_digest_of_rounding_differs_by_rounding() -> None:
    tensor = torch.linspace(-3, 5, 1001, dtype=torch.float64)
    near = tensor * (1 + 1e-14)
    first, second = digests.digest({"w": tensor}), digests.digest({"w": near})
    for one, other in zip(first[:2], second[:2], strict=True):
        assert abs(one - other) <= 1e-13 * first[2]
