"""Built-in losses in the place of the target's own: their errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.checking import checking
from ddpcheck.ranks.pool import Pool
from ddpcheck.report.data import Report
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef
from tests.diagnose.head import HEAD

MODEL = "model = nn.Linear(4, 3)\n"
HALF_MASKED = (
    "batch = torch.randn(8, 4), torch.tensor([0, -100, 2, -100, 1, 2, 0, 1])\n"
)
NOTHING_MASKED = (
    "--loss masked: no target is -100 or NaN, so the loss is the mean, and counts that "
    "differ between ranks were not checked"
)


def check(pool: Pool, folder: Path, source: str, loss: str) -> Report:
    """Returns the report of a target under a built-in loss at world size 2."""
    path = folder / "target.py"
    path.write_text(HEAD + source, encoding="utf-8")
    options = Options(world_sizes=(2,), modes=("ddp",), loss=(loss,))
    return checking.check(pool, TargetRef(path=str(path)), options)


@pytest.mark.parametrize(
    ("source", "loss", "warnings"),
    [
        (MODEL, "masked", (NOTHING_MASKED,)),
        (MODEL, "mean", ()),
    ],
)
def test_mask_of_nothing_is_reported(
    source: str, loss: str, warnings: tuple[str, ...], pool: Pool, tmp_path: Path
) -> None:
    report = check(pool, tmp_path, source, loss)
    assert (report.verdict, report.warnings) == ("equivalent", warnings)


def test_cause_in_a_built_in_loss_is_at_no_line_of_the_target(
    pool: Pool, tmp_path: Path
) -> None:
    report = check(pool, tmp_path, MODEL + HALF_MASKED, "masked")
    assert report.warnings == ()
    found = [(f.slug, f.where, f.fix and f.fix.verified) for f in report.findings]
    assert found == [("loss/local-normalizer", None, True)]
