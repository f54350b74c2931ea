"""An embedding divides its gradient by local counts.

What it means
An embedding divides each row's gradient by how often the shard uses it.

Why it happens
scale_grad_by_freq=True divides by local counts: g_i / n_i per rank, where one
process divides by the count of the batch.

How it was found
Outputs and d loss / d output are right, and only the weights of embeddings with
scale_grad_by_freq differ. The run in which they see the indices of all ranks
decides.

Example
    import torch
    from torch import nn
    torch.manual_seed(0)
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(5, 4, scale_grad_by_freq=True)
            self.head = nn.Linear(4, 3)
        def forward(self, ids):
            return self.head(self.words(ids).mean(1))
    model = Bag()
    batch = torch.randint(0, 5, (8, 6)), torch.arange(8) % 3
    loss = nn.CrossEntropyLoss()

Fix
Turn it off, or scale by the counts of all ranks. The example is mended by:

    model.words.scale_grad_by_freq = False

Not this rule if
Other parameters differ too.

References
-
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.text import names, number

SLUG = "loss/embedding-frequency"
LINK = "backward"


def detect(case: Case) -> Proposal | None:
    """Proposes it where only embeddings' gradients differ and the loss is sound."""
    if case.probed is None or not case.loss_is_sound or not case.forward_is_sound:
        return None
    rows = [
        t
        for q in case.step_quantity("gradients", 0)
        for t in q.tensors
        if t.excess * case.outcome.spec.rtol > case.rtol
    ]
    owners = list(dict.fromkeys(t.name.rpartition(".")[0] for t in rows))
    kinds = {m.name: m.scales_by_frequency for m in case.modules()}
    if not owners or not all(kinds.get(name, False) for name in owners):
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="an embedding with scale_grad_by_freq divides each row's gradient by how "
        "often the shard, not the batch, uses it",
        facts=(
            f"outputs and loss gradients are right; only the gradients of {names(owners)} "
            f"differ, by up to {number(max(t.rel_diff for t in rows))} relative",
        ),
        fix="scale_grad_by_freq=False, or scale by counts of all ranks",
        code="nn.Embedding(n, d)  # scale_grad_by_freq=False",
        code_rests_on="embeddings with scale_grad_by_freq have the wrong gradients",
        fixes=tuple(f"module.global:{name}" for name in owners),
        module=owners[0],
    )
