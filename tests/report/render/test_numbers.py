"""Rounding may not lie."""

from __future__ import annotations

import math

import pytest

from ddpcheck.report.render import numbers

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (5e-324, "4.94e-324"),
        (1e-16, "1e-16"),
        (-1e-16, "-1e-16"),
        (0.00999, "0.00999"),
        (0.33349, "0.333"),
        (1.0, "1"),
        (1.005, "1"),
        (9.995, "9.99"),
        (9.996, "10"),
        (999.4, "999"),
        (999.6, "1e+03"),
        (4.004e13, "4e+13"),
        (INF, "inf"),
        (-INF, "-inf"),
        (NAN, "nan"),
    ],
)
def test_number_keeps_three_digits(value: float, text: str) -> None:
    assert numbers.number(value) == text


@pytest.mark.parametrize("exponent", range(-323, 309, 7))
def test_number_of_nonzero_is_never_zero(exponent: int) -> None:
    assert float(numbers.number(10.0**exponent)) != 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (0.99999, "1"),
        (math.nextafter(1, 2), ">1"),
        (1.0049, ">1"),
        (1.0051, "1.01"),
        (0.0, "0"),
        (NAN, "nan"),
        (INF, "inf"),
    ],
)
def test_excess_above_one_never_reads_one(value: float, text: str) -> None:
    assert numbers.excess(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (9.999e12, "9.99e+12"),
        (1e13, "1e+13"),
        (1.0199, "1.01"),
        (0.0, "0"),
        (5e-324, "4.94e-324"),
        (INF, "inf"),
        (NAN, "nan"),
    ],
)
def test_at_least_never_rounds_up(value: float, text: str) -> None:
    assert numbers.at_least(value) == text


@pytest.mark.parametrize(
    ("value", "noun", "text"),
    [
        (0, "run", "0 runs"),
        (1, "run", "1 run"),
        (1234567, "fix", "1,234,567 fixes"),
    ],
)
def test_counted_agrees_with_its_noun(value: int, noun: str, text: str) -> None:
    assert numbers.counted(value, noun) == text


def test_rank_key_puts_nan_last() -> None:
    found = sorted([NAN, 2.0, INF, 0.5], key=numbers.rank_key)
    assert [str(value) for value in found] == ["0.5", "2.0", "inf", "nan"]
