"""What findings say, whole: summaries and facts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.ranks.pool import Pool
from tests.corpus import programs
from tests.diagnose.head import HEAD, STEP
from tests.diagnose.test_rules import checked

pytestmark = [pytest.mark.corpus, pytest.mark.usefixtures("causes_alone")]

_FITTED = (
    "given the single-process buffers, it does not; when the model has the samples "
    "of all ranks, the runs are equal"
)
# By program: the summary and the facts.
TOLD: dict[str, tuple[str, tuple[str, ...]]] = {
    "state/average-by-names-that-a-wrapper-changes": (
        "weights outside the model (an average, a teacher) get the same update on "
        "all ranks, but another one than in the single-process run: for example "
        "none, if they are looked up by names that the wrapper changes",
        (
            "after step 1 optimizer.average.shadow['2.bias'], which is neither a "
            "parameter nor a buffer of the model, differs from the single-process "
            "run by 0.0191 relative",
            "all values that differ so: optimizer.average.shadow['0.bias'], "
            "optimizer.average.shadow['0.weight'], optimizer.average.shadow['2.bias'] "
            "and 1 more; when they are set to the single-process values after every "
            "step, the runs are equal",
        ),
    ),
    "state/prior-that-a-forward-counts": (
        "forward updates a buffer from the local shard, then reads it in the same "
        "step: a sample's gradient depends on its shard",
        (
            "after the first step seen differs from the single-process run by "
            "0.789 relative, on rank 1",
            "modules whose buffers differ: the model itself",
            "when they are set to the single-process values as soon as they are "
            "written, the runs are equal",
        ),
    ),
    "ddp/networks-in-one-wrapper-frozen-in-turn": (
        "parts of the model are frozen in turn after wrapping: their buckets, "
        "which also hold trained parameters, wait for gradients that never come",
        (
            "2 parameters had requires_grad=True when DDP was built and have False "
            "now: critic.weight, critic.bias",
            "they are trained in another step, or in another part of the step",
        ),
    ),
    "loss/sum-divided-by-a-constant-count-of-all": (
        "each rank divides its sum by the count of all ranks, and DDP divides by 2 "
        "again: every gradient is 1/2 of the single-process one",
        (
            "the loss's gradient at the single-process outputs, divided by the "
            "single-process one: 1, 1 on the ranks, expected 2 on each",
            "the loss is divided by 8, a constant: the number in the global batch",
        ),
    ),
    "state/normaliser-of-observations-that-the-step-updates": (
        "normaliser (Normaliser) is fitted to the local shard before it is called: "
        "DDP then broadcasts rank 0's buffers, so that only rank 0's samples count",
        (
            "given the reference's input, the output of normaliser differs from "
            "the single-process output: relative difference 0.275",
            _FITTED,
        ),
    ),
    "state/scaler-fitted-by-the-step-to-its-first-shard": (
        "scaler (Scaler) is fitted to the local shard before it is called: every "
        "rank uses its own buffers",
        (
            "given the reference's input, the output of scaler differs from the "
            "single-process output: relative difference 0.275",
            _FITTED,
        ),
    ),
    "norm/function-of-a-norm-whose-backward-goes-by-own-counts": (
        "the model's forward synchronises statistics over ranks, but its backward "
        "is not the backward of the global statistics",
        (
            "the model's own forward calls 3 collectives, its output and the loss "
            "are right, and 2 gradients are wrong: a.bias, a.weight",
        ),
    ),
    "state/rows-that-begin-anew-by-activity-in-the-shard": (
        "a training step writes weights from the local shard after the update, so "
        "the ranks' weights drift apart permanently",
        (
            "gradients are equal up to step 1; after its update ranks differ in "
            "body.weight",
            "when every rank has the samples of all ranks, they do not differ",
        ),
    ),
    "loss/samples-dealt-out-by-length": (
        "the training step distributes the samples again, the loss is a mean over "
        "a rank's part, the parts differ in size, and DDP gives all of them the "
        "same weight",
        (
            "the ranks train on all samples of the single-process run, each on one "
            "rank: 2, 6",
            "when each rank's loss is weighted by its share of the samples, the "
            "ranks train as the single-process run does",
        ),
    ),
    "sync/hook-that-adds-up-what-it-has-added-up": (
        "a communication hook sums the ranks' gradients after every micro-batch, "
        "including the sums of earlier micro-batches",
        (
            "register_comm_hook was called once",
            "an update has 2 backwards; when the ranks' gradients are summed once, "
            "at the update, the ranks train as the single-process run does",
        ),
    ),
    "sync/norm-of-the-critic-that-is-summed-over-ranks": (
        "gradients are clipped by a norm that is summed over ranks, but DDP has "
        "already averaged the gradients: the norm is sqrt(W) times too large",
        (
            "at the optimizer's step the gradients of critic.2.bias, "
            "critic.2.weight, critic.0.bias and 1 more are 0.707 times the "
            "single-process ones, which is 1 / sqrt(2)",
        ),
    ),
    "data/split-by-chance-after-seeding-by-rank": (
        "samples are chosen at random, with another seed on every rank: the shards "
        "are not parts of one batch",
        (
            "in step 1 the single-process run trains on 16 samples; of these on "
            "no rank: 4; on more ranks than the single-process run has copies: 1",
            "with constants in place of random numbers the runs are equal",
        ),
    ),
    "rng/frequencies-left-out-by-numpy-seeded-alike": (
        "all ranks draw the same random numbers for different samples: the "
        "training step draws them with numpy or random, with the same seed on "
        "every rank",
        (
            "on rank 0 the model's input equals the single-process input for these "
            "samples, on the other ranks it does not",
            "with constants in place of random numbers the runs are equal",
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
    summary, facts = TOLD[name]
    (finding,) = checked(pool, tmp_path, programs.source(name)).findings
    assert (finding.summary, finding.facts) == (summary, facts)


KEPT_ROWS = f"""
model = nn.Linear(4, 3)
class Memory:
    rows = torch.arange(24.0).double()[:, None].expand(24, 3) * 100
memory = Memory()
{STEP}
    output = model(x)
    (output - memory.rows.mean(0) / 1000).square().mean().backward()
    optimizer.step()
    memory.rows = torch.cat([output.detach(), memory.rows])[:24]
"""


def test_rows_that_differ_as_much_on_all_ranks_are_of_the_shards(
    pool: Pool, tmp_path: Path
) -> None:
    (finding,) = checked(pool, tmp_path, HEAD + KEPT_ROWS).findings
    assert finding.summary == (
        "state outside the model's parameters and buffers is updated from the local "
        "shard: DDP does not broadcast it, so every rank continues with the state of "
        "its own data"
    )


def test_state_that_all_ranks_update_alike_is_no_doing_of_a_shard(
    pool: Pool, tmp_path: Path
) -> None:
    (finding,) = checked(pool, tmp_path, HEAD + EXCHANGED).findings
    assert (finding.slug, finding.summary) == (
        "state/buffer-not-synced",
        "state outside the model's parameters and buffers gets the same update on "
        "all ranks, but another one than in the single-process run",
    )
    assert finding.fix is not None
    assert (finding.fix.text, finding.fix.verified) == (
        "update it with the values of the global batch, as the single-process run does",
        True,
    )


def test_buffer_that_some_ranks_register_late_is_told_by_its_bytes(
    short: Pool, tmp_path: Path
) -> None:
    (finding,) = checked(short, tmp_path, HEAD + LATE).findings
    assert (finding.slug, finding.summary) == (
        "sync/collective-mismatch",
        "some ranks have buffers that others lack, and DDP broadcasts all buffers "
        "before a forward",
    )
    assert finding.facts[0] == "rank 1 receives 32 bytes and expects 8"
    assert finding.fix is not None
    assert (finding.fix.text, finding.fix.verified) == (
        "register every buffer before the model is wrapped, on all ranks",
        None,
    )
