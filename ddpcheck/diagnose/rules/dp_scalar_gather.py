"""Scalars of the replicas become a vector.

What it means
A scalar that the forward returns is a vector under nn.DataParallel.

Why it happens
DataParallel gathers the replicas' scalars to a vector of W. Its sum is W times the
mean; its mean weighs replicas with different numbers of samples alike.

How it was found
DataParallel differs where DDP does not. The run in which the replicas' scalars are
gathered to their mean, weighed by samples, decides.

Example
    import torch
    from torch import nn
    torch.manual_seed(0)
    class Net(nn.Linear):
        def forward(self, x):
            return super().forward(x), self.weight.square().sum()
    model, batch = Net(4, 3), (torch.randn(8, 4), torch.arange(8) % 3)
    def loss(output, target):
        return nn.functional.cross_entropy(output[0], target) + output[1].sum()

Fix
Take the mean of what DataParallel makes a vector. The example is mended by:

    def loss(output, target):
        return nn.functional.cross_entropy(output[0], target) + output[1].mean()

Not this rule if
DDP differs too.

References
https://github.com/huggingface/transformers/issues/608
https://github.com/pytorch/pytorch/issues/7956
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.data_parallel_case import DataParallelCase, Proposal

SLUG = "dp/scalar-gather"
LINK = "loss"


def detect(_: DataParallelCase) -> Proposal | None:
    """Proposes it on trial; the run with one scalar decides."""
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the forward returns a scalar per replica, which DataParallel gathers to a "
        "vector with one for each; what is made of it is not the scalar of one process",
        facts=(
            "with the replicas' scalars gathered to their weighted mean DataParallel "
            "equals one process",
        ),
        fix="take the mean over replicas, weighed by their samples, or return sums and "
        "counts",
        code="loss = scalars.mean()",
        fixes=("dp.mean_scalars",),
        speculative=True,
    )
