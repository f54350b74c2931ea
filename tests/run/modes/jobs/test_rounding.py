"""Only float32 results are rounded differently."""

from __future__ import annotations

import pytest
import torch

from ddpcheck.run.modes.jobs.rounding import Precision

ONE_ROUNDING = 2.0**-24

pytestmark = pytest.mark.usefixtures("seeded")


def test_products_in_float32_are_moved_by_about_one_rounding() -> None:
    x = torch.linspace(0.1, 0.9, 12).reshape(3, 4)
    expected = x @ x.T
    with Precision(reround=True) as seen:
        found = x @ x.T
    moved = ((found - expected) / expected).abs().max().item()
    assert 0 < moved <= 4 * ONE_ROUNDING
    assert seen.epsilon == 2 * ONE_ROUNDING


def test_what_is_exact_or_no_result_in_float32_stays() -> None:
    x = torch.linspace(0.1, 0.9, 12, dtype=torch.float32)
    wide = x.double()
    with Precision(reround=True):
        assert torch.equal(wide * wide, wide**2)
        assert torch.equal((x > 0.5).float().sum(), torch.tensor(6.0))
        assert torch.equal(x.reshape(3, 4).T.contiguous().T.flatten(), x)
        assert torch.equal(torch.cat([x, x]).relu().max(), x[-1])
        assert torch.equal(wide.float(), x)
        torch.manual_seed(0)
        drawn = torch.rand(4)
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(4))


def test_without_it_nothing_is_moved() -> None:
    x = torch.linspace(0.1, 0.9, 12)
    with Precision() as seen:
        found = x * 2.5
    assert torch.equal(found, x * 2.5)
    assert seen.epsilon == 2 * ONE_ROUNDING
