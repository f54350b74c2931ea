"""What belongs to the caller's thread is missing in the replicas'.

What it means
The forward depends on something that only the calling thread has.

Why it happens
nn.DataParallel runs every replica in a thread of its own. Thread-local values, context
variables and autocast on the CPU are not inherited; grad mode is.

How it was found
DataParallel differs where DDP does not. The run in which replicas run in the caller's
thread decides.

Example
    import contextvars
    import torch
    from torch import nn
    torch.manual_seed(0)
    scale = contextvars.ContextVar("scale", default=1.0)
    class Net(nn.Linear):
        def forward(self, x):
            return super().forward(x) * scale.get()
    model, batch = Net(4, 3), (torch.randn(8, 4), torch.arange(8) % 3)
    loss = nn.CrossEntropyLoss()
    def train_step(model, optimizer, batch):
        optimizer.zero_grad()
        scale.set(2.0)
        loss(model(batch[0]), batch[1]).backward()
        optimizer.step()

Fix
Enter the context inside forward, or pass the value. The example is mended by:

    class SafeNet(nn.Linear):
        def forward(self, x, factor):
            return super().forward(x) * factor
    model = SafeNet(4, 3)
    def train_step(model, optimizer, batch):
        optimizer.zero_grad()
        loss(model(batch[0], 2.0), batch[1]).backward()
        optimizer.step()

Not this rule if
DDP differs too.

References
https://github.com/pytorch/pytorch/issues/50170
https://github.com/pytorch/pytorch/issues/60540
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.data_parallel_case import DataParallelCase, Proposal

SLUG = "dp/thread-context"
LINK = "forward"


def detect(_: DataParallelCase) -> Proposal | None:
    """Proposes it on trial; the run in one thread decides."""
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the forward depends on what only the calling thread has, and "
        "DataParallel runs its replicas in threads of their own",
        facts=(
            "with the replicas in the caller's thread DataParallel equals one process",
        ),
        fix="enter the context inside forward, or pass the value as an argument",
        fixes=("dp.same_thread",),
        speculative=True,
    )


def detect_shared(_: DataParallelCase) -> Proposal | None:
    """Proposes it on trial for what replicas write together; the run without decides."""
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="DataParallel's replicas share the lists and dicts of the model: what one "
        "of them puts there, all have",
        facts=(
            "where every replica has lists and dicts of its own, DataParallel equals "
            "one process",
        ),
        fix="return what is collected from forward, or make the list inside it",
        code="def forward(self, x):\n    penalties = []  # not self.penalties",
        fixes=("dp.same_thread", "dp.own_objects"),
        speculative=True,
    )
