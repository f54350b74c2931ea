"""Data that would hide a fault are warned of."""

from __future__ import annotations

from pathlib import Path

from ddpcheck.ranks.pool import Pool
from tests.corpus import programs
from tests.diagnose.head import HEAD
from tests.diagnose.test_rules import checked

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
    source = programs.source("sound/ignored-targets-in-equal-numbers")
    report = checked(pool, tmp_path, source)
    assert report.warnings == (
        "equal only for this order of the samples: with the batch in another order "
        "weight differs by 0.461 at world size 2; here all shards have equal counts, "
        "or the samples of one shard belong together",
    )
