"""Detects compile/ddp-optimizer."""

from __future__ import annotations

import re

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.proposal import replaced
from ddpcheck.run.intervention import Switch

# In the message of the exception of a rank, or in its stack.
_IS_THE_COMPILERS = re.compile(r"torch/_dynamo/|ompiled autograd")
SLUG = "compile/ddp-optimizer"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it if DDP runs compiled code."""
    compiled = max((f.get("compiled", 0) for f in case.ranks), default=0)
    is_said = any(
        _IS_THE_COMPILERS.search(f.stack + f.summary) for f in case.run.faults
    )
    if not compiled and not is_said:
        return None
    backward = any(f.get("compiled_autograd") for f in case.ranks)
    backward |= "ompiled autograd" in case.fault_text
    settings = [f.get("optimize_ddp") for f in case.ranks]
    said = [f"the ranks raise {case.fault_text}"] if case.fault_text else []
    proposal = Proposal(
        summary="the compiled backward does not work with DDP's C++ reducer"
        if backward
        else "the model compiled by torch.compile does not work with DDP",
        facts=(
            f"functions traced by torch.compile: {compiled}; "
            f"optimize_ddp={settings[0]!r}, the backward compiled: {backward}",
            *said,
        ),
        fix="select DDP's Python reducer before building DDP"
        if backward
        else "do not split compiled graphs at DDP's buckets",
        code='config.optimize_ddp = "python_reducer"  # of torch._dynamo'
        if backward
        else "config.optimize_ddp = False  # of torch._dynamo",
        fixes=(Switch.PYTHON_REDUCER if backward else Switch.COMPILED_WHOLE,),
        speculative=True,
    )
    eager = replaced(
        proposal,
        fix="compile the model inside DDP, or nothing",
        code='torch.compiler.set_stance("force_eager")  # compiles nothing',
        fixes=(Switch.COMPILE_OFF,),
    )
    return replaced(proposal, fallback=eager)
