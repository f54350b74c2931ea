"""What is called verified is equal in plain torch too, in processes of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.checking import checking
from ddpcheck.ranks.pool import Pool
from ddpcheck.report.data import Report
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef
from tests.diagnose.fixed.test_fixed import ROUNDING, checked, differences, written
from tests.diagnose.head import HEAD

pytestmark = pytest.mark.usefixtures("no_script")
# Its functions are those of torch.distributed, under names of its own.
GATHERING = """
import torch
from torch.distributed import all_gather, get_world_size, is_initialized
def of_all_ranks(x):
    if not is_initialized():
        return x
    found = [torch.empty_like(x) for _ in range(get_world_size())]
    all_gather(found, x)
    return torch.cat(found)
"""
GATHERED = """
from gathering import of_all_ranks
batch = torch.randn(8, 4), torch.arange(8) % 2
model = nn.Linear(4, 3)
def loss(output, target):
    others, labels = of_all_ranks(output), of_all_ranks(target)
    near = (output @ others.T).logsumexp(1) - (output * others.mean(0)).sum(1)
    if dist.is_initialized():
        assert len(labels) == 8
    return near.mean()
"""


def test_group_is_hidden_from_a_helper_that_imports_functions_by_name(
    pool: Pool, tmp_path: Path
) -> None:
    path = written(tmp_path, HEAD + GATHERED)
    (path.parent / "gathering.py").write_text(GATHERING, encoding="utf-8")
    report = checked(pool, path)
    assert (report.verdict, _proofs(report)) == ("divergent", {"file"})
    fixed = tmp_path / "fixed.py"
    fixed.write_text(report.fixed, encoding="utf-8")
    assert max(differences(fixed)) < ROUNDING


# A file that torch lets a process import only once.
ONCE = """
library = torch.library.Library("imported_once", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: 2 * x, "CompositeImplicitAutograd")
model = nn.Linear(4, 3)
def loss(output, target):
    output = torch.ops.imported_once.twice(output)
    return nn.functional.cross_entropy(output, target, reduction="sum")
"""


def _proofs(report: Report) -> set[str | None]:
    return {f.fix.proof for f in report.findings if f.fix}


def test_file_runs_in_ranks_that_have_not_imported_the_target(
    pool: Pool, tmp_path: Path
) -> None:
    report = checked(pool, written(tmp_path, HEAD + ONCE))
    assert (report.verdict, _proofs(report)) == ("divergent", {"file"})


def test_file_runs_in_ranks_of_a_server_that_has_not_imported_the_target(
    tmp_path: Path,
) -> None:
    ref = TargetRef(path=str(written(tmp_path, HEAD + ONCE)))
    options = Options(world_sizes=(2,), modes=("ddp",))
    report = checking.check_file(ref, options)
    assert (report.verdict, _proofs(report)) == ("divergent", {"file"})
