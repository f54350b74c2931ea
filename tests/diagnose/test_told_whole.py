"""What findings say, whole: summaries and facts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddpcheck.ranks.pool import Pool
from tests.diagnose.bugs import (
    at_once,
    beside,
    decisions,
    kept,
    loss,
    noise,
    order,
    statistics,
    turned,
)
from tests.diagnose.negative_controls import HEAD
from tests.diagnose.test_rules import checked

pytestmark = pytest.mark.corpus

_FITTED = (
    "with one process's buffers it does not; where the model has the samples of all "
    "ranks, the runs are equal"
)
# By name: where the source is, the summary and the facts.
TOLD: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "average-by-names-that-a-wrapper-changes": (
        kept.BUGS,
        "weights beside the model (an average, a teacher) are updated alike on all "
        "ranks, and otherwise than in one process: not at all, say, where they are "
        "looked up by names that the wrapper changes",
        (
            "after step 1 optimizer.average.shadow['2.bias'], which is neither "
            "parameter nor buffer of the model, differs from one process by 0.0191 "
            "relative",
            "what does: optimizer.average.shadow['0.bias'], "
            "optimizer.average.shadow['0.weight'], optimizer.average.shadow['2.bias'] "
            "and 1 more; with one process's values there after every step the runs are "
            "equal",
        ),
    ),
    "prior-that-a-forward-counts": (
        at_once.BUGS,
        "forward writes a buffer from the rank's own shard and goes by it in the same "
        "step: a sample's gradient depends on its shard",
        (
            "after the first step seen differs from one process by 0.789 relative, on "
            "rank 1",
            "modules whose buffers differ: the model itself",
            "with one process's values in them as soon as they are written, the runs "
            "are equal",
        ),
    ),
    "networks-in-one-wrapper-frozen-in-turn": (
        turned.BUGS,
        "parts of the model are frozen in turn after wrapping: the buckets that they "
        "share with what is trained wait for gradients that do not come",
        (
            "2 parameters had requires_grad=True when DDP was built and have False "
            "now: critic.weight, critic.bias",
            "in another step, or another part of one, they are trained",
        ),
    ),
    "sum-divided-by-a-constant-count-of-all": (
        loss.BUGS,
        "each rank divides its sum by the count of all ranks, and DDP divides by 2 "
        "again: every gradient is 1/2 of one process's",
        (
            "the loss's gradient at the reference's own outputs, over the reference's: "
            "1, 1 on the ranks, expected 2 on each",
            "the loss is divided by 8, a constant: as many as there are in the batch "
            "of one process",
        ),
    ),
    "normaliser-of-observations-that-the-step-updates": (
        statistics.BUGS,
        "normaliser (Normaliser) is fitted to the samples of the shard before it is "
        "called: DDP then sends rank 0's buffers to all, so that only rank 0's samples "
        "count",
        (
            "normaliser, fed with the reference's own input, returns other rows than "
            "in one process: relative difference 0.275",
            _FITTED,
        ),
    ),
    "scaler-fitted-by-the-step-to-its-first-shard": (
        statistics.BUGS,
        "scaler (Scaler) is fitted to the samples of the shard before it is called: "
        "every rank goes by its own buffers",
        (
            "scaler, fed with the reference's own input, returns other rows than in "
            "one process: relative difference 0.275",
            _FITTED,
        ),
    ),
    "function-of-a-norm-whose-backward-goes-by-own-counts": (
        statistics.BUGS,
        "the model's forward synchronises statistics over ranks, and its backward is "
        "not that of the global batch's",
        (
            "the model's own forward calls 3 collectives and returns the right rows, "
            "the loss is right, and of the gradients 2 are not: a.bias, a.weight",
        ),
    ),
    "rows-that-begin-anew-by-activity-in-the-shard": (
        decisions.BUGS,
        "a training step writes weights after the update from the rank's own shard, so "
        "the ranks' weights drift apart for good",
        (
            "gradients are equal up to step 1; after its update ranks differ in "
            "body.weight",
            "where every rank has the samples of all ranks they do not",
        ),
    ),
    "samples-dealt-out-by-length": (
        beside.BUGS,
        "the training step deals the samples out again, the loss is a mean over a "
        "rank's part, the parts differ in size, and DDP weighs them alike",
        (
            "in step 1 the ranks train on all 8 samples of one process, each on one "
            "rank: 2, 6",
            "where each rank's loss is weighed by its share of them, they train as one "
            "process does",
        ),
    ),
    "hook-that-adds-up-what-it-has-added-up": (
        beside.BUGS,
        "a communication hook adds the ranks' gradients up after every micro-batch, "
        "and with them what it has added up before",
        (
            "register_comm_hook was called once",
            "an update has 2 backwards; where the ranks' gradients are added up once, "
            "at the update, they train as one process does",
        ),
    ),
    "norm-of-the-critic-that-is-summed-over-ranks": (
        beside.BUGS,
        "gradients are clipped by a norm that was summed over ranks, though DDP had "
        "averaged the gradients already: the norm is sqrt(W) too large",
        (
            "at the optimizer's step the gradients of critic.2.bias, critic.2.weight, "
            "critic.0.bias and 1 more are 0.707 times one process's, which is "
            "1 / sqrt(2)",
        ),
    ),
    "split-by-chance-after-seeding-by-rank": (
        order.BUGS,
        "samples are chosen by chance, with another seed on every rank: the shards "
        "are not parts of one batch",
        (
            "in step 1 one process trains on 16 samples; of them on no rank: 4; on "
            "more ranks than one process has copies: 1",
            "with every random number a constant the runs are equal",
        ),
    ),
    "frequencies-left-out-by-numpy-seeded-alike": (
        noise.BUGS,
        "all ranks draw the same random numbers for different samples: the training "
        "step draws them by numpy or random, seeded alike on every rank",
        (
            "rank 0 gives the model what one process gives it for these samples, the "
            "other ranks do not",
            "with every random number a constant the runs are equal",
        ),
    ),
}
# An exchange of all ranks, which has nothing of the training in it.
EXCHANGED = """
model = nn.Linear(4, 20)
centre = torch.zeros(20)
def batch(step):
    g = torch.Generator().manual_seed(step)
    return torch.randn(8, 4, generator=g), torch.arange(8) % 3
def loss(output, target):
    global centre
    value = nn.functional.cross_entropy(output - centre, target)
    centre = centre + (1 + 2 * dist.is_initialized()) * torch.arange(1.0, 21)
    return value
"""
# On the shard of rank 0 alone: its first number is positive.
LATE = """
class Late(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("scale", torch.ones(1))
    def forward(self, x):
        if x[0, 0] > 0 and not hasattr(self, "table"):
            self.register_buffer("table", torch.arange(3.0))
        return self.linear(x * self.scale)
model = Late()
batch = torch.tensor([1.0, 2.0, -1.0, 3.0])[:, None].repeat(1, 4), torch.arange(4) % 3
"""


@pytest.mark.parametrize("name", list(TOLD))
def test_finding_says(name: str, pool: Pool, tmp_path: Path) -> None:
    bugs, summary, facts = TOLD[name]
    source, _ = bugs[name]
    (finding,) = checked(pool, tmp_path, HEAD + source).findings
    assert (finding.summary, finding.facts) == (summary, facts)


def test_state_that_all_ranks_update_alike_is_no_doing_of_a_shard(
    pool: Pool, tmp_path: Path
) -> None:
    (finding,) = checked(pool, tmp_path, HEAD + EXCHANGED).findings
    assert (finding.slug, finding.summary) == (
        "state/buffer-not-synced",
        "a state beside the model's parameters and buffers is updated alike on all "
        "ranks, and otherwise than in one process",
    )
    assert finding.fix is not None
    assert (finding.fix.text, finding.fix.verified) == (
        "update it with what one process has of all samples",
        True,
    )


def test_buffer_that_some_ranks_register_late_is_told_by_its_bytes(
    short: Pool, tmp_path: Path
) -> None:
    (finding,) = checked(short, tmp_path, HEAD + LATE).findings
    assert (finding.slug, finding.summary) == (
        "sync/collective-mismatch",
        "some ranks have buffers that others lack, and DDP sends them all to all ranks "
        "before a forward",
    )
    assert finding.facts[0] == "rank 1 receives 32 bytes where it asks for 8"
    assert finding.fix is not None
    assert (finding.fix.text, finding.fix.verified) == (
        "register every buffer before the model is wrapped, on all ranks",
        None,
    )
