"""Jobs that the tests of ddpcheck.run execute on real ranks, by name."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddpcheck.ranks.worker import Context
from ddpcheck.run.interventions.collectives import exact
from ddpcheck.run.model import averaged
from ddpcheck.run.model.batch_norm import SynchronizedBatchNorm
from ddpcheck.run.modes import ps
from ddpcheck.run.modes.jobs.candidate import candidate
from ddpcheck.run.process import dynamo
from ddpcheck.run.spec import Defect

STEPS = 2
CHANNELS = 3


def data(shape: tuple[int, ...], step: int) -> tuple[Tensor, Tensor]:
    """Returns inputs of a drifting mean, and what multiplies the outputs."""
    generator = torch.Generator().manual_seed(17 + step)
    inputs = torch.randn(shape, generator=generator, dtype=torch.float64)
    inputs += torch.linspace(-2, 3, shape[0], dtype=torch.float64).reshape(
        -1, *[1] * (len(shape) - 1)
    )
    factors = torch.randn(shape, generator=generator, dtype=torch.float64)
    return inputs, factors


def dressed(norm: nn.Module, *, affine: bool) -> Any:
    """Returns the norm in float64, with weights other than one and zero."""
    norm = norm.double()
    if affine:
        with torch.no_grad():
            norm.weight.copy_(torch.tensor([0.5, -1.5, 2.0]))  # type: ignore[operator]
            norm.bias.copy_(torch.tensor([0.1, 0.2, -0.3]))  # type: ignore[operator]
    return norm


def trained(
    norm: Any, shape: tuple[int, ...], rows: tuple[int, int], *, affine: bool
) -> dict[str, Any]:
    """Returns outputs, gradients and statistics after STEPS steps on these rows."""
    told: dict[str, Any] = {"outputs": [], "input grads": []}
    for step in range(STEPS):
        inputs, factors = (t.narrow(0, *rows) for t in data(shape, step))
        inputs = inputs.clone().requires_grad_()
        outputs = norm(inputs)
        (outputs * factors).sum().backward()
        assert inputs.grad is not None
        told["outputs"].append(outputs.tolist())
        told["input grads"].append(inputs.grad.tolist())
    if affine:
        told["weight grad"] = norm.weight.grad.tolist()
        told["bias grad"] = norm.bias.grad.tolist()
    told["buffers"] = [b.tolist() for b in norm.buffers()]
    return told


def synchronized(
    context: Context,
    *,
    shape: tuple[int, ...],
    sizes: list[int],
    affine: bool,
    momentum: float | None,
) -> dict[str, Any]:
    """Trains a SynchronizedBatchNorm on this rank's rows."""
    rank = context.seat.rank
    norm = SynchronizedBatchNorm(CHANNELS, affine=affine, momentum=momentum)
    rows = sum(sizes[:rank]), sizes[rank]
    return trained(dressed(norm, affine=affine), shape, rows, affine=affine)


def evaluated(context: Context) -> bool:
    """Returns whether eval mode uses running statistics and no collective."""
    norm = dressed(SynchronizedBatchNorm(CHANNELS), affine=True).eval()
    plain = dressed(nn.BatchNorm1d(CHANNELS), affine=True).eval()
    inputs, _ = data((4 + context.seat.rank, CHANNELS), 0)
    if context.seat.rank:  # a collective would now wait for ever
        return True
    return torch.equal(norm(inputs), plain(inputs))


def judged_collectives(context: Context) -> dict[str, Any]:
    """Returns the defects found in collectives of the backend, by name."""
    rank, size = context.seat.rank, context.seat.world_size
    found: dict[str, list[Defect]] = {}

    def judge(what: str, call: Callable[[], Any]) -> None:
        defects: list[Defect] = []
        with exact.judged(defects):
            call()
        if defects:
            found[what] = defects

    for dtype in (torch.float64, torch.bfloat16, torch.complex64, torch.int64):
        mine = (torch.arange(1, 7) * (rank + 2)).to(dtype)
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX):
            if op == dist.ReduceOp.MAX and dtype.is_complex:
                continue
            if op == dist.ReduceOp.AVG and dtype == torch.int64:
                continue
            judge(f"{op} {dtype}", partial(dist.all_reduce, mine.clone(), op))
        parts = [torch.zeros_like(mine) for _ in range(size)]
        judge(f"all_gather {dtype}", partial(dist.all_gather, parts, mine))
        judge(f"broadcast {dtype}", partial(dist.broadcast, mine, 1))
    square = torch.arange(6.0).reshape(3, 2) + 10.0**rank
    judge("transposed", lambda: dist.all_reduce(square.clone().t()))
    judge("rows", lambda: dist.all_reduce(square.clone()[1:]))
    judge("column", lambda: dist.all_reduce(square.clone()[:, 1]))
    judge("subgroup", lambda: _in_pairs(rank, square.clone()))
    judge("asynchronous", lambda: dist.all_reduce(square.clone(), async_op=True).wait())
    told = {what: [dataclasses.asdict(d) for d in each] for what, each in found.items()}
    with exact.exact():
        column = square.clone()
        dist.all_reduce(column[:, 1])
    return {"found": told, "column": column[:, 1].tolist()}


def _in_pairs(rank: int, tensor: Tensor) -> None:
    groups = [dist.new_group([0, 1]), dist.new_group([2])]
    dist.all_reduce(tensor, group=groups[rank // 2])


def halved(_: Context) -> list[float]:
    """Returns the factors of a function that replaces torch's."""
    reduce = dist.all_reduce

    def halving(tensor: Tensor, *args: Any, **kwargs: Any) -> None:
        reduce(tensor, *args, **kwargs)
        tensor.mul_(0.5)

    defects: list[Defect] = []
    dist.all_reduce = halving
    try:
        with exact.judged(defects):
            dist.all_reduce(torch.ones(3) + dist.get_rank())
    finally:
        dist.all_reduce = reduce
    return [defect.ratio for defect in defects]


def dynamo_after(_: Context, compiles: bool) -> dict[str, Any]:  # noqa: FBT001
    """Trains under DDP, compiled or not; returns what became of torch._dynamo."""
    layer = nn.Linear(3, 1)
    nn.init.constant_(layer.weight, 0.5)
    nn.init.constant_(layer.bias, -2.0)
    model: Any = torch.nn.parallel.DistributedDataParallel(layer)
    first = torch.optim.AdamW(model.parameters(), lr=0.1)
    first.zero_grad()
    before, is_once = dynamo.is_stood_in(), True
    if compiles:
        config = importlib.import_module("torch._dynamo.config")
        itself, users = sys.modules["torch._dynamo"], "torch._dynamo.eval_frame"
        is_once = config is itself.config is sys.modules[users].config
        model = torch.compile(model, backend="eager")
        is_once &= isinstance(model, sys.modules[users].OptimizedModule)
    losses = []
    for optimizer in (first, torch.optim.SGD(model.parameters(), lr=0.1)):
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for _step in range(2):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 3)).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        optimizer.load_state_dict(optimizer.state_dict())
    after = dynamo.is_stood_in()
    return {"before": before, "is once": is_once, "after": after, "losses": losses}


def averaged_by_hand(context: Context, *, bucket: int) -> dict[str, Any]:
    """Returns gradients averaged in buckets, and the sizes of the reductions.

    Rank 0 has none for "late"; no rank has one for "unused".
    """
    factor = context.seat.rank + 1
    shapes = {"a": (2, 3), "b": (4,), "half": (3,), "late": (2,), "whole": (5,)}
    kinds = {"half": torch.float32, "phase": torch.complex128}
    shapes |= {"phase": (2,), "rows": (4, 2), "turned": (3, 2), "unused": (2,)}
    parameters = {
        name: nn.Parameter(torch.zeros(shape, dtype=kinds.get(name, torch.float64)))
        for name, shape in shapes.items()
    }
    for name, parameter in parameters.items():
        if name == "unused" or (name == "late" and factor == 1):
            continue
        values = torch.arange(parameter.numel()).reshape(parameter.shape) * factor
        values = values.to(parameter.dtype)
        if name == "phase":
            values *= 1 + 2j
        parameter.grad = values.to_sparse() if name == "rows" else values
    parameters["turned"].grad = torch.arange(6.0).double().reshape(2, 3).t() * factor
    reduced: list[int] = []
    all_reduce, averaged._BUCKET = dist.all_reduce, bucket  # noqa: SLF001

    def note(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        reduced.append(tensor.numel())
        return all_reduce(tensor, *args, **kwargs)

    dist.all_reduce = note
    try:
        averaged.average(parameters)
    finally:
        dist.all_reduce = all_reduce
    grads = {name: p.grad for name, p in parameters.items()}
    told = {n: None if g is None else g.tolist() for n, g in grads.items()}
    return {"gradients": told, "reduced": reduced}


def without_rpc(context: Context, **arguments: Any) -> Any:
    """Runs a worker or the server as with a torch that was built without rpc."""
    ps.has_rpc = lambda: False
    return candidate(context, **arguments)


def listeners_of_a_server(context: Context) -> list[str]:
    """Returns the addresses at which this process listens, once all are connected.

    Of the last of three processes, which is the server: [] for the others.
    """
    is_server = context.seat.rank == 2
    ps._connected(context.seat, 2, is_server=is_server)  # noqa: SLF001
    descriptors = Path("/proc/self/fd").iterdir()
    sockets = {str(path.readlink()) for path in descriptors if path.is_symlink()}
    found = []
    for name in ("tcp", "tcp6"):
        table = Path(f"/proc/self/net/{name}")
        lines = table.read_text("ascii").splitlines()[1:] if table.exists() else []
        for line in lines:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == _LISTENS and f"socket:[{inode}]" in sockets:
                found.append(local.partition(":")[0])
    return found


_LISTENS = "0A"
