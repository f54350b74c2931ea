"""DataParallel splits what is no batch of samples.

What it means
nn.DataParallel splits every tensor argument along dimension 0.

Why it happens
It calls torch.chunk on all tensors, also on those that are not samples: a table that
all samples share, one without dimensions, which cannot be split at all, and the items
of a list. Numbers, strings and lists of them are copied whole to each replica.

How it was found
DataParallel raises where one process trains, or computes something else. The run
decides in which tensors of other lengths than the samples are copied to every replica,
and lists as long are split. What raises counts as not checked beside runs of DDP, and
the cause stands beside that reason; with `--modes dp` it is a divergence.

Example
    import torch
    from torch import nn
    torch.manual_seed(0)
    class Net(nn.Linear):
        def forward(self, x, scale):
            return super().forward(x) * scale
    model = Net(4, 3)
    batch = (torch.randn(8, 4), torch.tensor(2.0)), torch.arange(8) % 3
    loss = nn.CrossEntropyLoss()

Fix
Pass a number, or one row per sample. The example is mended by:

    batch = (batch[0][0], torch.full((8, 1), 2.0)), batch[1]

Not this rule if
DDP raises too.

References
https://github.com/huggingface/transformers/issues/37474
https://github.com/huggingface/transformers/pull/40799
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.data_parallel_case import DataParallelCase, Proposal

SLUG = "dp/scatter-semantics"
LINK = "data"


def detect(case: DataParallelCase) -> Proposal | None:
    """Proposes it on trial; the run in which samples alone are split decides."""
    mended = "it runs" if case.run.faults else "it equals one process"
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="DataParallel splits and gathers every tensor along dimension 0, whatever "
        "that is, and copies all else whole; where samples alone are split and put "
        f"together {mended}",
        facts=(),
        fix="pass samples as tensors of one row each, and what belongs to no sample as a "
        "number or an attribute of the model",
        fixes=("dp.by_samples",),
        speculative=True,
    )
