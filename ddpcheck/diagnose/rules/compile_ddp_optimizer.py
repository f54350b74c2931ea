"""torch.compile and DDP's reducer do not go together.

What it means
Compiled training does not go together with DDP's reducer, and raises or is wrong.

Why it happens
Compiled graphs are split at DDP's buckets, which some models do not stand; and a
compiled backward does not run the hooks of the C++ reducer.

How it was found
Something is compiled. Runs with DDP's Python reducer, where the backward is compiled
too, with optimize_ddp=False, or without compiling decide.

Example
    import torch
    from torch import nn
    from torch._dynamo import config
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    batch = torch.randn(8, 4), torch.randn(8, 3)
    def run(model, x, y):
        nn.functional.mse_loss(model(x), y).backward()
    def train_step(model, optimizer, batch):
        config.compiled_autograd = True
        torch.compile(run, backend="eager")(model, *batch)
        optimizer.step()

Fix
optimize_ddp="python_reducer" before DDP is built, where the backward is compiled;
optimize_ddp=False for a graph that cannot be split; else compile the DDP object, not
what is inside. The example is mended by:

    def wrap(model):
        config.optimize_ddp = "python_reducer"
        return nn.parallel.DistributedDataParallel(model)

Not this rule if
Nothing is compiled, or the run differs without compiling as well.

References
https://github.com/pytorch/pytorch/issues/109774
https://github.com/pytorch/pytorch/issues/104674
"""

from __future__ import annotations

import re

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.proposal import replaced

# In what a rank raises, or in the stack of it.
_IS_THE_COMPILERS = re.compile(r"torch/_dynamo/|ompiled autograd")
SLUG = "compile/ddp-optimizer"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it where DDP runs what is compiled."""
    compiled = max(case.rank_facts("compiled", 0), default=0)
    is_said = any(
        _IS_THE_COMPILERS.search(f.stack + f.summary) for f in case.run.faults
    )
    if not compiled and not is_said:
        return None
    backward = any(case.rank_facts("compiled_autograd", default=False))
    backward |= "ompiled autograd" in case.fault_text
    settings = case.rank_facts("optimize_ddp", None)
    said = [f"the ranks raise {case.fault_text}"] if case.fault_text else []
    proposal = Proposal(
        slug=SLUG,
        link=LINK,
        summary="the compiled backward does not go together with DDP's C++ reducer"
        if backward
        else "what torch.compile makes of the model does not go together with DDP",
        facts=(
            f"functions that torch.compile looked at: {compiled}; "
            f"optimize_ddp={settings[0]!r}, the backward compiled: {backward}",
            *said,
        ),
        fix="choose DDP's Python reducer before DDP is built"
        if backward
        else "do not split compiled graphs at DDP's buckets",
        code='config.optimize_ddp = "python_reducer"  # of torch._dynamo'
        if backward
        else "config.optimize_ddp = False  # of torch._dynamo",
        fixes=("compile.reducer" if backward else "compile.whole",),
        speculative=True,
    )
    eager = replaced(
        proposal,
        fix="compile what is inside of DDP, or nothing",
        code='torch.compiler.set_stance("force_eager")  # compiles nothing',
        fixes=("compile.off",),
    )
    return replaced(proposal, fallback=eager)
