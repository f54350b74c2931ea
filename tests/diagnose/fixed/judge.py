"""Trains a target in plain torch, in one process and on ranks, without ddpcheck.

    python judge.py

Reads names of files, one per line. Prints the worst relative difference of weights and
buffers of each file at two ranks and at four, one per line; "inf" where a rank fails.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 3
WORLD_SIZES = (2, 4)
DEADLINE_S = 60


def each(change: Any, value: Any) -> Any:
    """Returns the value with every tensor in it changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {k: each(change, v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(each(change, v) for v in value)
    return value


def cast(t: torch.Tensor) -> torch.Tensor:
    """Returns real numbers in double precision."""
    return t.double() if t.is_floating_point() else t


def shard(t: torch.Tensor) -> torch.Tensor:
    """Returns the rank's rows."""
    if not dist.is_initialized() or not t.dim():
        return t
    return t.tensor_split(dist.get_world_size())[dist.get_rank()]


def train(path: str) -> dict[str, torch.Tensor]:
    """Returns weights and buffers after training."""
    spec = importlib.util.spec_from_file_location("judged", path)
    assert spec is not None
    assert spec.loader is not None
    target: Any = importlib.util.module_from_spec(spec)
    sys.modules["judged"] = target
    spec.loader.exec_module(target)
    is_made = isinstance(target.model, nn.Module)
    model = (target.model if is_made else target.model()).double().train()
    wrapped: Any = model
    if dist.is_initialized():
        wrapped = getattr(target, "wrap", DistributedDataParallel)(model)
    make = getattr(target, "optimizer", lambda p: torch.optim.SGD(p, lr=0.1))
    optimizer = make(list(wrapped.parameters()))
    for step in range(STEPS):
        batch = target.batch
        if callable(batch):
            batch = batch(step) if batch.__code__.co_argcount else batch()
        batch = each(lambda t: shard(cast(t)), batch)
        if hasattr(target, "train_step"):
            target.train_step(wrapped, optimizer, batch)
            continue
        optimizer.zero_grad()
        if not hasattr(target, "loss"):  # the model computes it
            wrapped(**batch).loss.backward()
            optimizer.step()
            continue
        x, y = batch
        output = (
            wrapped(**x)
            if isinstance(x, dict)
            else wrapped(*x)
            if isinstance(x, tuple | list)
            else wrapped(x)
        )
        target.loss(output, y).backward()
        optimizer.step()
    names = (name.replace("module.", "") for name in wrapped.state_dict())
    values = wrapped.state_dict().values()
    return {n: v.clone() for n, v in zip(names, values, strict=True)}


def rank(number: int, path: str, world_size: int, folder: str) -> None:
    """Trains one rank, and saves its result."""
    signal.alarm(DEADLINE_S)
    store = dist.FileStore(f"{folder}/store", world_size)
    dist.init_process_group("gloo", store=store, rank=number, world_size=world_size)
    torch.save(train(path), f"{folder}/{number}.pt")
    dist.barrier()
    os._exit(0)


def alone(_: int, path: str, folder: str) -> None:
    """Trains the single process."""
    torch.save(train(path), f"{folder}/alone.pt")


def difference(path: str, world_size: int) -> float:
    """Returns the worst relative difference of any rank."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        try:
            mp.start_processes(alone, (path, folder), 1, start_method="fork")
            given = path, world_size, folder
            mp.start_processes(rank, given, world_size, start_method="fork")
        except mp.ProcessRaisedException as error:
            sys.stderr.write(f"{error}\n")
            return float("inf")
        except mp.ProcessExitedException:
            return float("inf")
        one = torch.load(Path(folder) / "alone.pt")
        found = [torch.load(f"{folder}/{r}.pt") for r in range(world_size)]
    worst = 0.0
    for state in found:
        assert state.keys() == one.keys()
        for name, value in one.items():
            size = float(value.double().abs().max().clamp(min=1e-3))
            diff = float((state[name].double() - value.double()).abs().max())
            worst = max(worst, diff / size)
    return worst


if __name__ == "__main__":
    # Optimizers import it: here once, before the forks.
    importlib.import_module("torch._dynamo")
    for line in sys.stdin:
        for size in WORLD_SIZES:
            print(difference(line.removesuffix("\n"), size), flush=True)  # noqa: T201
