"""Runs of DataParallel without one of DDP: that is made to tell the causes apart.

Programs of the corpus with `--modes dp` are checked by test_corpus.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ddpcheck.ranks.pool import Pool
from tests.corpus import programs
from tests.diagnose.head import HEAD
from tests.diagnose.test_rules import checked

pytestmark = pytest.mark.corpus

# Two views one after the other: gathered, each half has rows of both.
VIEWS = """
class Views(nn.Linear):
    def forward(self, x):
        return super().forward(torch.cat([x, x.flip(1)]))
model = Views(4, 3)
def loss(output, target):
    one, other = nn.functional.normalize(output, dim=1).chunk(2)
    return nn.functional.cross_entropy(one @ other.t(), torch.arange(len(one)))
"""


# The state of each layer lies before the samples, in what is given and returned.
LAYERS = """
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.RNN(4, 5, 2), nn.Linear(5, 3)
    def forward(self, x, state):
        output, state = self.cell(x[None], state)
        return self.head(output[0]), state
model = Recurrent()
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    output, state = model(x, x.new_ones(2, len(x), 5))
    (loss(output, y) + state[:, ::2].square().mean()).backward()
    optimizer.step()
"""
# As many lists as a replica has samples: the loss is not given all of the outputs.
ENTRIES = """
class Proposing(nn.Linear):
    def forward(self, x):
        return list(super().forward(x).split(1))
model = Proposing(4, 3)
loss = lambda output, target: sum(
    nn.functional.cross_entropy(o, target[i : i + 1].expand(len(o)))
    for i, o in enumerate(output))
"""
ON_WRAPPER = """
class Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, by):
        ctx.by = by
        return x.view_as(x)
    @staticmethod
    def backward(ctx, grad):
        return -ctx.by * grad, None
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.alpha, self.a, self.b = 0.0, nn.Linear(4, 5), nn.Linear(5, 3)
    def forward(self, x):
        return self.b(Turned.apply(self.a(x).tanh(), self.alpha))
model = Net()
def train_step(model, optimizer, batch):
    model.alpha = 0.5
    optimizer.zero_grad()
    loss(model(batch[0]), batch[1]).backward()
    optimizer.step()
"""
UNUSED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 2)
    def forward(self, x):
        return self.a(x)
model = Net()
def optimizer(params):
    return torch.optim.AdamW(params, lr=0.01, weight_decay=0.1)
"""


def test_what_nothing_uses_is_moved_by_zeros_and_not_compared(
    pool: Pool, tmp_path: Path
) -> None:
    report = checked(pool, tmp_path, HEAD + UNUSED, ("dp",))
    assert report.verdict == "equivalent"
    why = (
        "it is unused; DataParallel gives it gradients of zeros, by which the "
        "optimizer changes it (weight decay, momentum)"
    )
    assert {n.what: n.why for n in report.not_compared} == {
        "gradients of b.weight, b.bias": "no gradient in the single-process run either",
        "weights of b.weight": why,
        "weights of b.bias": why,
    }


SHIFTED = """
class Shifted(nn.Linear):
    def forward(self, x):
        is_replica = "_is_replica" in vars(self)
        return super().forward(x) + is_replica * torch.arange(3)
model = Shifted(4, 3)
"""


def test_unknown_says_that_ddp_is_right(pool: Pool, tmp_path: Path) -> None:
    (finding,) = checked(pool, tmp_path, HEAD + SHIFTED, ("dp",)).findings
    assert (finding.slug, finding.runs) == ("unknown", (0,))
    expected = "the cause is unknown; under DataParallel alone the forward differs"
    assert finding.summary == expected
    assert finding.facts[-1] == "DDP at world size 2 equals the single-process run"


def test_loss_of_all_outputs_is_no_cause_where_these_are_wrong(
    pool: Pool, tmp_path: Path
) -> None:
    report = checked(pool, tmp_path, HEAD + VIEWS, ("dp",))
    assert [(f.slug, f.link) for f in report.findings] == [("unknown", "forward")]


REASSIGNED = """
class Counted(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.register_buffer("seen", torch.zeros(3))
    def forward(self, x):
        y = super().forward(x)
        self.seen = self.seen + y.detach().sum(0)
        return y * (1 + self.seen.tanh())
model = Counted()
"""


def test_what_replicas_lose_is_told_where_ddp_differs_too(
    pool: Pool, tmp_path: Path
) -> None:
    source = HEAD + REASSIGNED.replace("y * (1 + self.seen.tanh())", "y * 1")
    report = checked(pool, tmp_path, source, ("dp",))
    found = [(f.slug, f.fix and f.fix.verified) for f in report.findings]
    assert found == [("dp/replica-state-lost", None)]


def test_what_raises_is_told_by_what_makes_it_run(pool: Pool, tmp_path: Path) -> None:
    # It runs, and a sum of the replicas' means is no mean.
    source = """
class Net(nn.Linear):
    def forward(self, x, scale):
        return (super().forward(x) * scale).mean()
model = Net(4, 3)
batch = (torch.randn(8, 4), torch.tensor(2.0)), torch.arange(8) % 3
loss = lambda output, target: output.sum()
"""
    report = checked(pool, tmp_path, HEAD + source, ("dp", "ddp"))
    assert [(r.verdict, r.why) for r in report.runs][:1] == [
        (
            "not-checked",
            "DataParallel cannot run this target: DataParallel splits and gathers "
            "every tensor along dimension 0, whatever that is, and copies "
            "everything else whole; when only samples are split and gathered, it "
            "runs (dp/scatter-semantics); RuntimeError: chunk expects at least a "
            "1-dimensional tensor",
        )
    ]
    # Who asks for DataParallel alone wants it to run.
    report = checked(pool, tmp_path, HEAD + source, ("dp",))
    assert [(r.verdict, r.why) for r in report.runs] == [("divergent", "")]
    (finding,) = report.findings
    assert (finding.slug, finding.facts) == (
        "dp/scatter-semantics",
        (
            "the single-process run trains; under DataParallel: RuntimeError: "
            "chunk expects at least a 1-dimensional tensor",
            "with the fix it runs, and differs from the single-process run for "
            "another cause",
        ),
    )
    fix = finding.fix
    assert fix is not None
    assert (fix.verified, fix.excess_before) == (False, math.inf)


def test_what_raises_for_a_cause_of_no_rule_is_unknown(
    pool: Pool, tmp_path: Path
) -> None:
    source = """
class Net(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y, float(y.detach().mean())
model = Net(4, 3)
loss = lambda output, target: nn.functional.cross_entropy(output[0], target)
"""
    report = checked(pool, tmp_path, HEAD + source, ("dp",))
    assert [r.verdict for r in report.runs] == ["divergent"]
    (finding,) = report.findings
    assert (finding.slug, finding.summary, finding.facts) == (
        "unknown",
        "the cause is unknown; DataParallel cannot run this target",
        (
            "the single-process run trains; under DataParallel: TypeError: 'float' "
            "object is not iterable",
        ),
    )


def test_replica_that_does_not_end_is_no_divergence(
    short: Pool, tmp_path: Path
) -> None:
    source = """
import threading
class Net(nn.Linear):
    def forward(self, x):
        if len(x) == 4:  # one process has 8
            threading.Event().wait()
        return super().forward(x)
model = Net(4, 3)
loss = nn.CrossEntropyLoss()
"""
    report = checked(short, tmp_path, HEAD + source, ("dp",))
    assert [(r.verdict, r.why) for r in report.runs] == [
        (
            "not-checked",
            "DataParallel cannot run this target: waited until the deadline",
        )
    ]


def test_unknown_says_that_the_target_is_written_for_ranks(
    pool: Pool, tmp_path: Path
) -> None:
    source = HEAD + SHIFTED.replace("is_replica =", "is_replica = world() == 1 and")
    (finding,) = checked(pool, tmp_path, source, ("dp",)).findings
    assert finding.facts[-2:] == (
        "DDP at world size 2 equals the single-process run",
        "the target uses torch.distributed, and DataParallel has no process group: "
        "code that acts on all ranks does not run there",
    )


def test_cause_of_data_parallel_beside_another_one_of_ddp(
    pool: Pool, tmp_path: Path
) -> None:
    counter = programs.source("dp/counter-of-calls")
    weighed = counter.replace("weight = self.calls", "weight = 1 + self.calls")
    source = weighed + "loss = nn.CrossEntropyLoss(reduction='sum')\n"
    report = checked(pool, tmp_path, source, modes=("dp", "ddp"))
    modes = {f.slug: {report.runs[i].mode for i in f.runs} for f in report.findings}
    assert modes == {"loss/sum-reduction": {"ddp"}, "dp/replica-state-lost": {"dp"}}
    assert all(f.fix and f.fix.verified for f in report.findings)


def test_what_replicas_have_no_group_for_is_told_in_their_words(
    pool: Pool, tmp_path: Path
) -> None:
    source = programs.source("forward/rows-centred-over-ranks-that-replicas-lack")
    report = checked(pool, tmp_path, source, ("dp", "ddp"))
    assert [r.verdict for r in report.runs] == ["divergent", "equivalent"]
    (finding,) = report.findings
    assert finding.runs == (0,)
    assert finding.summary == (
        "DataParallel's replicas have no process group; in ranks without one 0 "
        "(Centred) mixes samples: its output for a sample depends on the other "
        "samples in the shard, or on its position among them"
    )
    assert finding.facts[-2:] == (
        "found on ranks whose model has no process group: their gradients differ "
        "by as much as DataParallel's, and with the rows of all ranks in these "
        "modules they equal the single-process gradients",
        "DDP at world size 2 equals the single-process run",
    )
    fix = finding.fix
    assert fix is not None
    assert (fix.verified, fix.safe) == (True, True)
    assert fix.code == "model = DistributedDataParallel(model)"
    assert fix.excess_before is not None
    assert fix.excess_after is not None
    assert fix.excess_before > 1e6
    assert fix.excess_after < 1


def test_samples_in_another_dimension_are_told_where_it_raises(
    pool: Pool, tmp_path: Path
) -> None:
    (finding,) = checked(pool, tmp_path, HEAD + LAYERS, ("dp",)).findings
    assert finding.slug == "dp/scatter-semantics"
    assert finding.summary.endswith("when only samples are split and gathered, it runs")


def test_loss_explains_nothing_that_it_was_not_given(
    pool: Pool, tmp_path: Path
) -> None:
    (finding,) = checked(pool, tmp_path, HEAD + ENTRIES, ("dp",)).findings
    assert finding.slug == "unknown"


def test_attribute_set_on_a_wrapper_is_no_hook(pool: Pool, tmp_path: Path) -> None:
    (finding,) = checked(pool, tmp_path, HEAD + ON_WRAPPER, ("ddp",)).findings
    assert finding.slug == "unknown"
    assert (
        "set on the wrapper and not on the model inside, which keeps its own "
        "value: alpha"
    ) in finding.facts


FINE = "DDP at world size 2 equals the single-process run"


@pytest.mark.parametrize(
    ("name", "summary", "facts"),
    [
        (
            "dp/kind-of-a-parameter-asked-in-forward",
            "the forward reads parameters(), which is empty in DataParallel's "
            "replicas: their parameters are plain tensors",
            (
                "with parameters() of the replicas filled in, DataParallel equals "
                "the single-process run",
            ),
        ),
        (
            "dp/lists-that-replicas-share",
            "DataParallel's replicas share the lists and dicts of the model: an "
            "entry added by one replica is seen by all",
            (
                "when every replica has its own lists and dicts, DataParallel "
                "equals the single-process run",
            ),
        ),
        (
            "rng/dice-of-each-replica",
            "the forward draws random numbers with numpy or random, and every replica "
            "draws its own",
            (
                "with constants in place of random numbers DataParallel equals the "
                "single-process run",
            ),
        ),
        (
            "dp/vector-of-no-samples-among-the-outputs",
            "DataParallel splits and gathers every tensor along dimension 0, "
            "whatever that is, and copies everything else whole; when only samples "
            "are split and gathered, it equals the single-process run",
            (),
        ),
    ],
    ids=["kind", "lists", "dice", "vector"],
)
def test_finding_about_replicas_says(
    name: str, summary: str, facts: tuple[str, ...], pool: Pool, tmp_path: Path
) -> None:
    (finding,) = checked(pool, tmp_path, programs.source(name), ("dp",)).findings
    told = [fact for fact in finding.facts if fact != FINE]
    assert (finding.summary, told) == (summary, list(facts))
