"""Replicas return tensors of different lengths.

What it means
The outputs of nn.DataParallel's replicas do not fit together.

Why it happens
A forward that pads to the longest sequence it sees pads to another length in every
replica, and gathering concatenates along dimension 0 alone.

How it was found
DataParallel raises where one process trains. The run in which outputs are filled up to
the longest before they are gathered decides. What raises counts as not checked beside
runs of DDP, and the cause stands beside that reason; with `--modes dp` it is a
divergence.

Example
    import torch
    from torch import nn
    torch.manual_seed(0)
    class Net(nn.Linear):
        def forward(self, x, lengths):
            return super().forward(x[:, : int(lengths.max())])
    model = Net(4, 3)
    batch = (torch.randn(8, 5, 4), torch.arange(8) // 2 + 2), torch.arange(8) % 3
    def loss(output, target):
        return nn.functional.cross_entropy(output[:, 0], target)

Fix
Pad to a length that all replicas know: total_length. The example is mended by:

    class SafeNet(nn.Linear):
        def forward(self, x, lengths):
            return super().forward(x)
    model = SafeNet(4, 3)

Not this rule if
DDP raises too.

References
https://github.com/pytorch/pytorch/issues/6299
https://github.com/pytorch/pytorch/issues/2312
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.data_parallel_case import DataParallelCase, Proposal

SLUG = "dp/variable-length-gather"
LINK = "forward"


def detect(case: DataParallelCase) -> Proposal | None:
    """Proposes it where DataParallel raises; the run with padded outputs decides."""
    if not case.run.faults:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="DataParallel's replicas return tensors of different lengths; with outputs "
        "filled up to the longest it runs",
        facts=(),
        fix="pad to a length that all replicas know (total_length)",
        fixes=("dp.pad_gather",),
        speculative=True,
    )
