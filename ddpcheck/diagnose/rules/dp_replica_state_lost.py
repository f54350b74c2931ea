"""What replicas write to themselves is thrown away.

What it means
What forward writes to the model vanishes under nn.DataParallel.

Why it happens
Replicas live for one forward. An attribute or a buffer that is assigned anew is the
replica's; one written in place survives from replica 0 alone, which has seen 1 / W
of the data.

How it was found
Buffers differ under DataParallel, the gradients of the first step do not, and no
other rule explains the run. DDP at the same world size stands for the fix.

Example
    import torch
    from torch import nn
    torch.manual_seed(0)
    class Net(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.register_buffer("calls", torch.zeros(()))
        def forward(self, x):
            self.calls = self.calls + 1
            return super().forward(x)
    model, batch = Net(), (torch.randn(8, 4), torch.arange(8) % 3)
    loss = nn.CrossEntropyLoss()

Fix
Write the buffer in place: replica 0 shares it with the model. What belongs to samples,
as a hidden state does, goes in as an argument and comes out. The example is mended by:

    class SafeNet(Net):
        def forward(self, x):
            self.calls += 1
            return nn.functional.linear(x, self.weight, self.bias)
    model = SafeNet()

Not this rule if
DDP differs in the same buffers: state/buffer-broadcast-overwrites or norm/.

References
https://github.com/pytorch/pytorch/issues/2864
https://github.com/Lightning-AI/pytorch-lightning/issues/565
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.data_parallel_case import DataParallelCase, Proposal
from ddpcheck.diagnose.facts.text import number

SLUG = "dp/replica-state-lost"
LINK = "update"


def detect(case: DataParallelCase) -> Proposal | None:
    """Proposes it where buffers differ and the first gradients do not."""
    first = case.run.gradients.excess_by_step[:1]
    worst = case.run.buffers.worst
    if first and first[0] > 1:
        return None
    if not case.run.buffers.mismatched or worst is None:
        return _of_attributes()
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="DataParallel throws away what replicas write: buffers keep their first "
        "value, or the first replica's data alone",
        facts=(
            f"{worst.name} differs by {number(worst.rel_diff)} relative after step "
            f"{worst.step + 1}; the gradients of the first step are right",
        ),
        fix="use DistributedDataParallel, or write buffers in place",
        code="model = DistributedDataParallel(model)",
    )


def _of_attributes() -> Proposal:
    """Proposes it on trial for what is no buffer; the run that keeps it decides."""
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="DataParallel throws away what replicas assign to themselves: a counter, "
        "a cache or a hidden state keeps its first value",
        facts=(
            "with what each replica assigned to itself kept, DataParallel equals one "
            "process",
        ),
        fix="use DistributedDataParallel, or a buffer that is written in place; what "
        "belongs to samples goes in as an argument and comes out",
        code="self.register_buffer('steps', torch.zeros((), dtype=torch.long))",
        fixes=("dp.keep_state",),
        speculative=True,
    )
