"""Causes in targets whose inputs or targets are sparse: probes take what they can."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.ranks.pool import Pool
from tests.diagnose.head import HEAD
from tests.diagnose.test_rules import checked

pytestmark = [pytest.mark.corpus, pytest.mark.usefixtures("causes_alone")]

NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Linear(8, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 1)
    def forward(self, x):
        found = x @ self.table.weight.t() + self.table.bias
        return self.head(NORM)
def model():
    torch.manual_seed(0)
    return Net()
def batch():
    g = torch.Generator().manual_seed(1)
    x = torch.randn(16, 8, generator=g) * (torch.rand(16, 8, generator=g) < 0.5)
    return x.LAYOUT, x.sum(1, keepdim=True)
"""
MEAN = """
def loss(output, target):
    return nn.functional.mse_loss(output, target)
"""
SUM = """
def loss(output, target):
    return nn.functional.mse_loss(output, target, reduction="sum")
"""
NORMED = NET.replace("NORM", "self.norm(found)") + MEAN
SUMMED = NET.replace("NORM", "found") + SUM
COO, CSR = "to_sparse()", "to_sparse_csr()"

CASES = {
    "norm-coo": (NORMED.replace("LAYOUT", COO), "norm/local-batch-stats"),
    "norm-csr": (NORMED.replace("LAYOUT", CSR), "norm/local-batch-stats"),
    "sum-coo": (SUMMED.replace("LAYOUT", COO), "loss/sum-reduction"),
    "sum-csr": (SUMMED.replace("LAYOUT", CSR), "loss/sum-reduction"),
    "count-of-sparse-targets": (
        """
model = nn.Linear(8, 4)
def batch():
    g = torch.Generator().manual_seed(1)
    x = torch.randn(16, 8, generator=g)
    return x, ((torch.rand(16, 4, generator=g) < 0.3) * 1.0).to_sparse()
def loss(output, target):
    y = target.to_dense()
    return ((output - 1).square() * y).sum() / y.sum()
""",
        "loss/local-normalizer",
    ),
    # A module gives the next one a sparse tensor.
    "sum-of-sparse-outputs": (
        SUMMED.replace("x.LAYOUT", "x")
        .replace("x @ self", "self.pick(x) @ self")
        .replace("self.norm = ", "self.pick = Pick()\n        self.norm = ")
        .replace(
            "class Net",
            "class Pick(nn.Module):\n"
            "    def forward(self, x):\n"
            "        return x.relu().to_sparse()\n"
            "class Net",
        ),
        "loss/sum-reduction",
    ),
}


@pytest.mark.parametrize("name", list(CASES))
def test_sparse_data_hide_no_cause(name: str, pool: Pool, tmp_path: Path) -> None:
    source, slug = CASES[name]
    report = checked(pool, tmp_path, HEAD + source)
    assert [finding.slug for finding in report.findings] == [slug]
    assert not [text for text in report.warnings if "internal" in text]
