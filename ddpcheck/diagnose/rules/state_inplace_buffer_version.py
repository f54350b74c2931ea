"""A buffer is written between a forward and its backward.

What it means
A buffer that backward needs is written over before it, on ranks only.

Why it happens
autograd keeps the tensor, not a copy. A broadcast or an update in place between two
forwards makes what the first one kept invalid.

How it was found
autograd raises that a variable was modified by an inplace operation, and one
process does not. The run in which kept tensors survive that decides.

Example
    import torch
    import torch.distributed as dist
    from torch import nn
    torch.manual_seed(0)
    class Scaled(nn.Linear):
        def forward(self, x):
            if dist.is_initialized():
                self.by.mul_(1.0)  # written over while the first forward needs it
            return super().forward(x) * self.by
    model, batch = Scaled(4, 4), (torch.randn(8, 4), torch.ones(8))
    model.register_buffer("by", torch.ones(4))
    def train_step(model, optimizer, batch):
        optimizer.zero_grad()
        (model(batch[0]) * model(-batch[0])).mean().backward()
        optimizer.step()

Fix
Do not write the buffer between a forward and its backward. The example is mended
by:

    class SafeScaled(nn.Linear):
        def forward(self, x):
            return super().forward(x) * self.by
    model = SafeScaled(4, 4)
    model.register_buffer("by", torch.ones(4))

Not this rule if
One process raises too: then the target does not train at all.

References
https://github.com/pytorch/pytorch/issues/22095
https://github.com/pytorch/pytorch/issues/66504
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal

SLUG = "state/inplace-buffer-version"
LINK = "forward"


def detect(case: Case) -> Proposal | None:
    """Proposes it where autograd says so on ranks and not in one process."""
    if "modified by an inplace operation" not in case.fault_text:
        return None
    if not case.facts["has_buffers"]:
        return None  # the target's own collective, in place
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="a buffer that backward needs is written over in between, on ranks only",
        facts=(f"autograd raises: {case.fault_text[:100]}",),
        fix="one forward per backward, a clone of the buffer in forward, or "
        "broadcast_buffers=False",
        code="scale = self.scale.clone()  # what backward keeps",
        fixes=("autograd.mutation",),
    )
