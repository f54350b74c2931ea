"""parameters() of a replica is empty.

What it means
parameters() is empty inside forward under nn.DataParallel.

Why it happens
Replicas hold copies of the parameters as plain attributes, so that gradients flow
through them: they are no parameters any more, and a penalty over parameters() is 0.

How it was found
DataParallel differs where DDP does not. The run in which the replicas' parameters()
are filled decides.

Example
    import torch
    from torch import nn
    torch.manual_seed(0)
    class Net(nn.Linear):
        def forward(self, x):
            penalty = sum(p.square().sum() for p in self.parameters())
            return super().forward(x), x.new_zeros(len(x)) + penalty
    model, batch = Net(4, 3), (torch.randn(8, 4), torch.arange(8) % 3)
    def loss(output, target):
        return nn.functional.cross_entropy(output[0], target) + output[1].mean()

Fix
Use the attributes, or compute it outside forward. The example is mended by:

    class SafeNet(nn.Linear):
        def forward(self, x):
            penalty = self.weight.square().sum() + self.bias.square().sum()
            return super().forward(x), x.new_zeros(len(x)) + penalty
    model = SafeNet(4, 3)

Not this rule if
DDP differs too.

References
https://github.com/pytorch/pytorch/issues/42327
https://github.com/pytorch/pytorch/issues/36035
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.data_parallel_case import DataParallelCase, Proposal

SLUG = "dp/replica-parameters-empty"
LINK = "forward"


def detect(_: DataParallelCase) -> Proposal | None:
    """Proposes it on trial; the run in which replicas have them decides."""
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the forward asks for parameters, and DataParallel's replicas have none: "
        "parameters() is empty there, and what was one is a plain tensor",
        facts=(
            "with parameters() of the replicas filled DataParallel equals one process",
        ),
        fix="compute it outside forward, on the model itself, or read the attributes",
        code="loss = loss + penalty(model.module.parameters())",
        fixes=("dp.replica_parameters",),
        speculative=True,
    )
