"""The suite's own jobs: predicted trainings as traces, and several runs in one job."""

from __future__ import annotations

import importlib
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ddpcheck.compare import comparison as compare
from ddpcheck.compare.trace import Reader, Writer
from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks.messages import Job
from ddpcheck.ranks.worker import Context
from ddpcheck.run import jobs as run_jobs
from ddpcheck.run.facts import HeldOtherwise, TraceFacts
from ddpcheck.run.model.model import DTYPES
from ddpcheck.run.spec import RankResult, ReferenceResult, RunSpec, StepResult
from ddpcheck.suite.zoo import batches, cases, models


def predicted(
    context: Context, *, model: str, loss: str, spec: RunSpec, reference: str
) -> ReferenceResult:
    """Writes the training that theory predicts as a trace, as `jobs.reference` does.

    Gradients and weights of every step; no buffers, no outputs, no losses. The fact
    "excess" is the distance of each step's gradients from the reference.

    Args:
        context: of a solo rank.
        model: a name of matrix.LOSSES_OF.
        loss: a name of matrix.CLASS_LOSSES.
        spec: of the candidate; its mode, world size and batch norm are predicted.
        reference: the trace of the single-process run on the global batch.
    """
    started = time.perf_counter()
    name = f"prediction-{context.seat.name}-{time.monotonic_ns()}"
    path = Path(context.seat.folder) / name
    writer = Writer(path)
    try:
        excess = _write(writer, model, loss, spec, Reader(Path(reference)))
    except BaseException:
        writer.discard()
        raise
    return ReferenceResult(
        trace=str(path),
        spec=spec,
        losses=(None,) * spec.steps,
        facts={
            "batch_size": batches.BATCH_SIZE,
            "unused": [],
            "idle": [],
            "excess": excess,
        },
        seconds=time.perf_counter() - started,
    )


def _write(
    writer: Writer, model: str, loss: str, spec: RunSpec, reference: Reader
) -> list[float]:
    """Writes all steps; returns the largest excess of each step's gradients."""
    dtype = DTYPES[spec.dtype]
    initial = ((name, p.detach().to(dtype)) for name, p in models.initial(model))
    writer.add("initial", 0, initial)
    training = cases.predicted_training(
        model,
        loss,
        spec.batch_norm,
        spec.mode,
        spec.world_size,
        spec.steps,
        dtype,
        spec.ps_reduce,
    )
    excess = []
    for step, (gradients, weights) in enumerate(training):
        named = {name: gradients.get(name) for name in weights}
        writer.add("gradients", step, named.items())
        writer.add("weights", step, weights.items())
        excess.append(_excess(named, reference, step, spec.rtol))
    facts: TraceFacts = {
        "calls": {},
        "shapes": [],
        "unfinished": [],
        "states": {},
        "held": [],
        "held_otherwise": HeldOtherwise(),
    }
    writer.index.facts = facts
    writer.close()
    return excess


def _excess(
    named: dict[str, Tensor | None], reference: Reader, step: int, rtol: float
) -> float:
    references = {
        name: reference.get("gradients", step, name)
        for name in reference.names("gradients", step)
    }
    scale = reference.scale("gradients", step)
    found = compare.compare_group(named, references, rtol=rtol, scale=scale, step=step)
    return found.worst.excess if found.worst else 0.0


def candidates(context: Context, *, runs: list[dict[str, Any]]) -> None:
    """Runs `jobs.candidate` for each dict of arguments.

    Emits ([StepResult, ...], RankResult) per run, so that the results of runs before a
    failure arrive.

    Raises:
        UsageError: a target is wrong.
        RuntimeError: a run raised; the rank cannot be used again.
    """
    for arguments in runs:
        steps: list[StepResult] = []
        within = replace(context, emit=steps.append)
        result: RankResult = run_jobs.candidate(within, **arguments)
        if result.problem is not None:
            raise UsageError(result.problem)
        if result.raised is not None:
            raised = result.raised
            raise RuntimeError(f"{raised.type_name}: {raised.message}\n{raised.stack}")
        context.emit((steps, result))


def several(context: Context, *, jobs: list[Job]) -> list[Any]:
    """Does the jobs one after the other; returns what each returned."""
    made = []
    for job in jobs:
        module, name = job.function.split(":")
        function = getattr(importlib.import_module(module), name)
        made.append(function(context, **job.arguments))
    return made
