"""Where the tolerance comes from, in numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpcheck.checking import checking
from ddpcheck.compare import tolerance
from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks.pool import Pool
from ddpcheck.suite import main as suite
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef


@pytest.mark.parametrize(
    ("dtype", "rtol"),
    [("float64", 1e-9), ("float32", 2e-5), ("bfloat16", 4e-2), ("float16", 5e-3)],
)
def test_default_of_each_dtype(dtype: str, rtol: float) -> None:
    found = tolerance.default(dtype)
    assert (found.rtol, found.origin) == (rtol, f"{dtype} default")


def test_chosen_names_its_origin() -> None:
    found = tolerance.chosen(0.125)
    assert (found.rtol, found.origin) == (0.125, "set by the user")


def test_least_tolerance_of_a_dtype_is_below_its_default_and_within_settings() -> None:
    assert tolerance.LEAST_RTOL.keys() == tolerance.DEFAULT_RTOL.keys()
    for dtype, least in tolerance.LEAST_RTOL.items():
        tolerance.check_chosen(least, dtype)
        assert tolerance.FINEST_RTOL <= least < tolerance.DEFAULT_RTOL[dtype]
        assert tolerance.DEFAULT_RTOL[dtype] < tolerance.COARSEST_RTOL


TARGET = """\
import torch
tolerance = 1e-9
model = lambda: torch.nn.Linear(2, 1)
batch = torch.ones(4, 2), torch.ones(4, 1)
loss = torch.nn.MSELoss()
"""
TOO_FINE = (
    "ddpcheck: a tolerance of 1e-09 is below the resolution of float32 [option-value]\n"
    "  expected   from 1.19e-07, one step of float32, to 0.1\n"
    "  found      1e-09\n"
    "  fix        leave the tolerance out: float32 has 2e-05\n"
    "  more       ddpcheck --explain option-value"
)


def test_tolerance_below_the_dtype_of_the_runs_is_refused(
    pool: Pool, tmp_path: Path
) -> None:
    path = tmp_path / "mymodel.py"
    path.write_text(TARGET, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        checking.check(pool, TargetRef(path=str(path)), Options(dtype="float32"))
    assert str(caught.value) == TOO_FINE


def test_tolerance_below_the_dtype_of_the_suite_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        suite.main(Options(dtype="float32", tolerance=1e-9))
    assert str(caught.value) == TOO_FINE


def test_low_floor_leaves_the_default() -> None:
    found = tolerance.from_floor("float64", 1e-14, 1e-14)
    assert (found.rtol, found.noise_floor) == (1e-9, 1e-14)
    assert found.origin == "float64 default"


def test_floor_of_float32_raises_rtol_to_32_times_it() -> None:
    found = tolerance.from_floor("float32", 5e-6, 5e-6)
    assert found.rtol == pytest.approx(32 * 5e-6)
    assert found.origin.startswith("32 x the noise floor 5e-06, measured")


def test_float64_floor_that_shows_float32_arithmetic_takes_32_of_its_roundings() -> (
    None
):
    found = tolerance.from_floor("float64", 2e-12, 2e-12)
    assert found.rtol == 32 * 2.0**-24
    assert found.origin.startswith("32 x the rounding of float32: the model computes")


def test_floor_too_large_for_rounding_is_not_used() -> None:
    found = tolerance.from_floor("float64", 2e-5, 2e-5)
    assert found.rtol == 1e-9
    assert "the order of the samples matters" in found.origin
    assert found.noise_floor == 2e-5


def test_rounding_that_an_optimizer_amplifies_is_none_of_float32() -> None:
    found = tolerance.from_floor("float64", 7e-11, 1e-14)
    assert found.rtol == pytest.approx(32 * 7e-11)


def test_rounding_that_grows_with_each_update_is_rounding() -> None:
    found = tolerance.from_floor("float64", 5e-5, 7e-7)
    assert found.rtol == pytest.approx(32 * 5e-5)
    assert found.origin.startswith("32 x the noise floor 5e-05, measured")


def test_rounding_that_grows_too_much_is_not_used() -> None:
    found = tolerance.from_floor("float64", 2e-3, 7e-7)
    assert found.rtol == 1e-9
    assert "the order of the samples matters" in found.origin


@given(st.sampled_from(sorted(tolerance.DEFAULT_RTOL)), st.floats(0, 1))
def test_tolerance_never_falls_below_the_default(dtype: str, floor: float) -> None:
    found = tolerance.from_floor(dtype, floor, floor)
    assert found.rtol >= tolerance.DEFAULT_RTOL[dtype]


@given(st.sampled_from(sorted(tolerance.DEFAULT_RTOL)), st.floats(0, 1))
def test_run_at_its_own_floor_passes_unless_refused(dtype: str, floor: float) -> None:
    found = tolerance.from_floor(dtype, floor, floor)
    assert found.rtol >= floor or floor > tolerance.LARGEST_FLOOR[dtype]
