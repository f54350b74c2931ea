"""Detects loss/embedding-frequency."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.text import names, number
from ddpcheck.run.intervention import GlobalModule

SLUG = "loss/embedding-frequency"
LINK = "backward"


def detect(case: Case) -> Proposal | None:
    """Proposes it if only embeddings' gradients differ and the loss is sound."""
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
        summary="an embedding with scale_grad_by_freq divides each row's gradient "
        "by how often the row occurs in the shard, not in the global batch",
        facts=(
            f"outputs and loss gradients are right; only the gradients of {names(owners)} "
            f"differ, by up to {number(max(t.rel_diff for t in rows))} relative",
        ),
        fix="set scale_grad_by_freq=False, or scale by the counts of all ranks",
        code="nn.Embedding(n, d)  # scale_grad_by_freq=False",
        code_rests_on="embeddings with scale_grad_by_freq have the wrong gradients",
        fixes=tuple(GlobalModule(name=name) for name in owners),
        module=owners[0],
    )
