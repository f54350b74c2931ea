"""No rule fires on what only looks wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.ranks.pool import Pool
from tests.diagnose.negative_controls import BROKEN_TWINS, CONTROLS, HEAD
from tests.diagnose.test_rules import checked, params, skip_where_too_new


@pytest.mark.parametrize("name", params(list(CONTROLS)))
def test_control_is_equivalent(name: str, pool: Pool, tmp_path: Path) -> None:
    skip_where_too_new(name)
    report = checked(pool, tmp_path, HEAD + CONTROLS[name])
    assert (report.verdict, [f.slug for f in report.findings]) == ("equivalent", [])
    assert report.runs[0].gradients.compared


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("name", "old", "new", "slug"), BROKEN_TWINS, ids=[twin[0] for twin in BROKEN_TWINS]
)
def test_broken_twin_of_a_control_yields_its_finding(
    name: str, old: str, new: str, slug: str, pool: Pool, tmp_path: Path
) -> None:
    assert CONTROLS[name].count(old) == 1
    report = checked(pool, tmp_path, HEAD + CONTROLS[name].replace(old, new))
    assert (report.verdict, [f.slug for f in report.findings]) == ("divergent", [slug])


SAME = """
model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False), nn.Linear(3, 3))
batch = torch.ones(8, 4), torch.ones(8, dtype=torch.long)
"""


def test_batch_of_equal_samples_is_warned_of(pool: Pool, tmp_path: Path) -> None:
    report = checked(pool, tmp_path, HEAD + SAME)
    assert (report.verdict, report.warnings) == (
        "equivalent",
        (
            "all samples of the batch are equal, so all shards are equal: a norm or "
            "loss that depends on the local shard cannot be detected; let batch() "
            "return samples that differ",
        ),
    )
    other = tmp_path / "other"  # one sample of another kind is enough
    other.mkdir()
    source = SAME + "batch[0][7] = 2\n"
    assert checked(pool, other, HEAD + source).verdict == "divergent"


def test_data_that_hid_a_local_count_is_warned_of(pool: Pool, tmp_path: Path) -> None:
    source = CONTROLS["ignored-targets-in-equal-numbers"]
    report = checked(pool, tmp_path, HEAD + source)
    assert report.warnings == (
        "equal only for this order of the samples: with the batch in another order "
        "weight differs by 0.461 at world size 2; here all shards have equal counts, "
        "or the samples of one shard belong together",
    )
