"""DataParallel splits what is no batch of samples.

What it means
nn.DataParallel splits every tensor argument along dimension 0.

Why it happens
It calls torch.chunk on all tensors, also on those that are not samples: one without
dimensions cannot be split at all. Numbers and strings are copied whole to each replica.

How it was found
DataParallel raises where one process trains. The run in which tensors without
dimensions are copied to every replica decides. What raises counts as not checked, so
the cause stands beside that reason.

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

from ddpcheck.diagnose.data_parallel_case import DataParallelCase, Proposal

SLUG = "dp/scatter-semantics"
LINK = "data"


def detect(case: DataParallelCase) -> Proposal | None:
    """Proposes it where DataParallel raises; the run with copies decides."""
    if not case.run.faults:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="DataParallel splits every tensor along dimension 0; with those that have "
        "none copied to every replica it runs",
        facts=(),
        fix="pass a number, or one row per sample",
        fixes=("dp.copy_scalars",),
        speculative=True,
    )
