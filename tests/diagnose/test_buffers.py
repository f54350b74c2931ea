"""Who writes a buffer that differs, when, and which ranks have it so."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.ranks.pool import Pool
from tests.diagnose.head import HEAD
from tests.diagnose.test_rules import checked

pytestmark = pytest.mark.usefixtures("causes_alone")

# A regulariser is updated, never called. Rows of one length let the shards agree at
# first.
_REGULARISED = """
class Regulariser(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("term", torch.zeros(1))
    def update(self, x):
        self.term = self.term + x.detach().square().sum(1).mean()
class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Parameter({rows})
        self.regulariser = Regulariser()
    def forward(self, x):
        picked = self.rows[x]
        self.regulariser.update(picked)
        return picked
model = Scorer()
batch = torch.tensor([0, 0, 0, 1, 2, 3, 4, 4]), torch.arange(8) % 3
"""


@pytest.mark.parametrize(
    ("rows", "after"),
    [("torch.eye(5)", "step 2"), ("torch.arange(15.0).view(5, 3)", "the first step")],
)
def test_buffer_of_a_part_that_nothing_calls_is_written_in_forward(
    rows: str, after: str, pool: Pool, tmp_path: Path
) -> None:
    report = checked(pool, tmp_path, HEAD + _REGULARISED.format(rows=rows))
    (finding,) = report.findings
    assert finding.slug == "state/buffer-broadcast-overwrites"
    assert finding.summary == (
        "forward updates a buffer from the local shard, and before each forward "
        "rank 0's value overwrites the others: only rank 0's data count"
    )
    assert finding.facts[0].startswith(f"after {after} regulariser.term differs from ")
    assert finding.facts[1:] == (
        "modules whose buffers differ: regulariser; their outputs in the first step "
        "are right",
        "gradients are right in all steps",
    )
    assert finding.fix is not None
    assert finding.fix.verified


# As libraries of self-supervised training do: a first forward makes what is lazy.
_TRIED = """
def norm(n):
    return nn.SyncBatchNorm(n) if dist.is_initialized() else nn.BatchNorm1d(n)
class Tried(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 3), norm(3))
        self(torch.randn(4, 4))
def model():
    torch.manual_seed(0)
    return Tried()
batch = torch.randn(8, 4), torch.arange(8) % 3
"""


def test_buffers_that_all_ranks_begin_with_and_one_process_does_not(
    pool: Pool, tmp_path: Path
) -> None:
    (finding,) = checked(pool, tmp_path, HEAD + _TRIED).findings
    assert (finding.slug, finding.summary, finding.facts) == (
        "state/buffer-not-synced",
        "all ranks start from the same buffers, but not from the single-process "
        "ones: model() returns other buffers when a process group exists",
        (
            "before the first step every rank differs from the single-process run "
            "in 1 buffer: 1.running_var",
        ),
    )
    assert finding.fix is not None
    assert finding.fix.verified
