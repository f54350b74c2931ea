"""A batch norm is known by what it does, whoever wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.ranks.pool import Pool
from tests.diagnose.head import HEAD
from tests.diagnose.test_rules import checked

pytestmark = pytest.mark.corpus

NORM = """
class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("running_var", torch.ones(width))
    def forward(self, x):
        mean, var = x.mean(0), x.var(0, unbiased=False)
        if self.training:
            with torch.no_grad():
                {update}
        x = (x - mean) / (var + 1e-9).sqrt()
        return {output}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 6), Norm(6), nn.Linear(6, 3)
    def forward(self, x):
        x = self.norm(self.first(x))
        return self.last({taken}.tanh())
model = Net()
"""
IN_PLACE = "self.running_var.mul_(0.9).add_(0.1 * var)"
REASSIGNED = "self.running_var = 0.9 * self.running_var + 0.1 * var"
LOG_DETERMINANT = "x, -0.5 * var.log().sum().expand(len(x))"


@pytest.mark.parametrize(
    ("update", "output", "taken", "slug"),
    [
        (IN_PLACE, "x", "x", "norm/local-batch-stats"),
        (REASSIGNED, "x", "x", "norm/local-batch-stats"),
        (IN_PLACE, LOG_DETERMINANT, "x[0]", "norm/local-batch-stats"),
        # Keeps no statistics: what it does to samples is all that is known of it.
        ("pass", "x", "x", "forward/batch-coupled"),
        # Keeps them, and is no norm: twice the input gives twice the output.
        (IN_PLACE, "x * var.sqrt()", "x", "forward/batch-coupled"),
    ],
)
def test_norm_is_known_by_what_it_does(
    update: str, output: str, taken: str, slug: str, pool: Pool, tmp_path: Path
) -> None:
    source = HEAD + NORM.format(update=update, output=output, taken=taken)
    report = checked(pool, tmp_path, source)
    found = [(f.slug, f.fix and f.fix.verified) for f in report.findings]
    assert found[0] == (slug, True)
