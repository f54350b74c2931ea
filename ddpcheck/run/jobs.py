"""The entry points that the engine calls by name in every rank."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ddpcheck import target as target_module
from ddpcheck import tree
from ddpcheck.errors import Problem, UsageError
from ddpcheck.ranks import preload
from ddpcheck.ranks.worker import Context, describe
from ddpcheck.run import (
    averaged,
    countables,
    fixes,
    isolation,
    observe,
    rounding,
    wrapping,
)
from ddpcheck.run import model as models
from ddpcheck.run.data_parallel import DataParallelOnCPU
from ddpcheck.run.gather import without_group
from ddpcheck.run.names import Names
from ddpcheck.run.noise import DrawCounter, SampleNoise, bound
from ddpcheck.run.recorders import ComparingRecorder, WritingRecorder
from ddpcheck.run.spec import BackwardCount, CollectiveCount, RankResult, ReferenceResult, RunSpec
from ddpcheck.run.steps import Training, batch_size
from ddpcheck.target import Target, TargetRef
from ddpcheck.trace import Reader, Writer, as_dense

_REFERENCE_SEED = 7_919  # any number that no rank uses


def load_in_server(
    path: str, names: list[list[str]]
) -> tuple[TargetRef, Target | None, Problem | None]:
    """Imports the target before any rank is forked; what the fork server calls."""
    torch.set_num_threads(1)  # thread pools would not survive the fork
    ref = TargetRef(path=path, names=tuple((a, b) for a, b in names))
    try:
        return ref, target_module.load(ref), None
    except UsageError as error:
        return ref, None, error.problem


def load(ref: TargetRef) -> Target:
    """Returns the target, from the fork server where it has imported it.

    Raises:
        UsageError: as ddpcheck.target.load.
    """
    if preload.RESULT is not None and preload.RESULT[0] == ref:
        _, target, problem = preload.RESULT
        if problem is not None:
            raise UsageError(problem)
        assert target is not None
        loaded: Target = target
        return loaded
    return target_module.load(ref)


def reference(context: Context, *, ref: TargetRef, spec: RunSpec) -> ReferenceResult:
    """Runs one process on the global batch and records everything.

    float64 first; a model that refuses it runs in float32.
    """
    started = time.perf_counter()
    try:
        target = load(ref)
        clean = _fingerprint(target)
        result = _attempts(context, target, spec)
    except UsageError as error:
        return ReferenceResult(problem=error.problem)
    return _replace(
        result,
        seconds=time.perf_counter() - started,
        is_clean=clean == _fingerprint(target),
    )


def candidate(
    context: Context,
    *,
    ref: TargetRef,
    spec: RunSpec,
    trace: str,
    find_unused: bool = False,
) -> RankResult:
    """Runs this rank's part of a run and compares it with the reference's trace.

    Every step's result is emitted as it ends: it survives whatever comes after.
    """
    started = time.perf_counter()
    rank = context.seat.rank
    try:
        target = load(ref)
        clean = _fingerprint(target)
        with isolation.isolated(), observe.observing() as seen:
            run = _Candidate(context, target, spec, Reader(Path(trace)), find_unused)
            run.seen = seen
            run.execute()
    except UsageError as error:
        return RankResult(rank=rank, problem=error.problem)
    except Exception as error:  # noqa: BLE001 (user code; told as data)
        return RankResult(
            rank=rank, raised=describe(error), dtype=spec.dtype, is_clean=False
        )
    return RankResult(
        rank=rank,
        raised=run.raised,
        dtype=spec.dtype,
        facts=run.facts,
        seconds=time.perf_counter() - started,
        is_clean=run.raised is None and clean == _fingerprint(target),
    )


def _fingerprint(target: Target) -> int:
    for module in (sys.modules.get(getattr(target.batch, "__module__", "")),):
        if module is not None and getattr(module, "__file__", None) == target.path:
            return isolation.fingerprint(module)
    return 0


def _attempts(context: Context, target: Target, spec: RunSpec) -> ReferenceResult:
    """Returns the first attempt that works; raises the last one's problem."""
    constants = "float32" if spec.constants == "float64" else spec.constants
    dtypes: list[tuple[str, str]] = [(spec.dtype, constants)]
    if spec.dtype in ("auto", "float64"):
        dtypes = [("float64", "float64"), ("float64", "float32")]
    if spec.dtype == "auto":
        dtypes.append(("float32", "float32"))
    refused: Exception | None = None
    for dtype, constants in dtypes:
        attempt = spec.but(dtype=dtype, constants=constants)
        try:
            with isolation.isolated(), observe.observing() as seen:
                result = _Reference(context, target, attempt, seen).execute()
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 (user code)
            refused = error
            continue
        warnings = list(result.warnings)
        if refused is not None and dtype == "float32":
            warnings.append(
                "the model refuses float64, so it ran in float32: "
                f"{type(refused).__name__}: {_first_line(refused)}"
            )
        return _replace(result, warnings=tuple(warnings))
    assert refused is not None
    raise _raises(target, refused) from refused


class _Reference:
    """One process on the global batch."""

    def __init__(
        self, context: Context, target: Target, spec: RunSpec, seen: observe.Observed
    ) -> None:
        self.target, self.spec, self.seen = target, spec, seen
        name = f"trace-{context.seat.name}-{time.monotonic_ns()}"
        self.path = Path(context.seat.folder) / name
        self.shapes: list[list[tuple[int, ...]]] = []
        self.draws = 0

    def execute(self) -> ReferenceResult:
        torch.set_default_dtype(torch.float32)
        model = models.build(self.target, self.spec, seed=_REFERENCE_SEED)
        calls = _count_calls(model)
        writer = Writer(self.path)
        try:
            return self._train(model, writer, calls)
        except BaseException:
            writer.discard()
            raise

    def _train(
        self, model: nn.Module, writer: Writer, calls: dict[str, int]
    ) -> ReferenceResult:
        names = Names(model)
        writer.add("initial", 0, names.parameters(model).items())
        writer.add("initial_buffers", 0, names.buffers(model).items())
        batches = batches_of(self.target, self.spec)
        size = batch_size(self.target, batches[0])
        set_default_dtype(self.spec)
        recorder = WritingRecorder(writer)
        training = Training(
            target=self.target,
            model=model,
            optimizer=models.make_optimizer(self.target, model),
            names=names,
            recorder=recorder,
            loss=loss_function(self.target, self.spec),
            around_step=lambda step: self._around(step, size),
        )
        isolation.seed_everything(self.spec.seed)
        before = {name: p.dtype for name, p in names.parameters(model).items()}
        training.run(iter(batches))
        _check_dtypes(before, names.parameters(model))
        self._check_finite(training, recorder)
        unused = [n for n, e in writer.index.groups[("gradients", 0)].items() if e is None]
        facts = {
            "batch_size": size,
            "num_parameters": sum(p.numel() for p in model.parameters()),
            "num_tensors": len(names.order),
            "model": type(model).__name__,
            "optimizer": type(training.optimizer).__name__,
            "learning_rate": _learning_rate(training.optimizer),
            "has_batch_norm": _has_batch_norm(model),
            "has_wrap": self.target.wrap is not None,
            "has_train_step": self.target.train_step is not None,
            "asks_distributed": self.seen.asks_distributed,
            "draws": self.draws,
            "unused": unused,
            "untrained": [
                n for n, p in names.parameters(model).items() if not p.requires_grad
            ],
            "settings": self.target.settings,
            "updates": training.updates,
        }
        writer.index.facts = {"calls": dict(calls), "shapes": self.shapes}
        writer.close()
        return ReferenceResult(
            trace=str(self.path),
            spec=self.spec,
            losses=tuple(training.losses),
            facts=facts,
        )

    @contextlib.contextmanager
    def _around(self, step: int, size: int) -> Iterator[None]:
        with _autocast(self.spec):
            if self.spec.noise != "sample":
                with _counting(step) as counter:
                    yield
                self.draws += counter.count if counter else 0
                return
            noise = SampleNoise(
                seed=self.spec.seed,
                step=step,
                shapes=None,
                start=0,
                size=size,
                total=size,
            )
            with bound(noise):
                yield
            self.shapes.append(noise.shapes)
            self.draws += len(noise.shapes)

    def _check_finite(self, training: Training, recorder: WritingRecorder) -> None:
        bad = [
            f"the loss at step {step}"
            for step, value in enumerate(training.losses)
            if value is not None and not math.isfinite(value)
        ] + recorder.not_finite
        if not bad:
            return
        raise UsageError(
            Problem(
                slug="target-not-finite",
                message=f"{self.target.name}: one process on the global batch does "
                "not train: NaN or infinity",
                expected="finite losses and gradients in all steps",
                found=", ".join(bad[:3]),
                fix="a smaller learning rate, other data, or fewer --steps",
            )
        )


class _Candidate:
    """This rank's part of a dp, ddp, averaged or repeated single run."""

    def __init__(
        self,
        context: Context,
        target: Target,
        spec: RunSpec,
        reader: Reader,
        find_unused: bool,  # noqa: FBT001
    ) -> None:
        self.context, self.target, self.spec = context, target, spec
        self.reader, self.find_unused = reader, find_unused
        self.rank = context.seat.rank
        self.is_rank = spec.mode in ("ddp", "averaged")
        self.raised: Any = None
        self.facts: dict[str, Any] = {}
        self.seen = observe.Observed()

    def execute(self) -> None:
        spec = self.spec
        torch.set_default_dtype(torch.float32)
        # Ranks differ, so that an unseeded model and unsynchronised noise show.
        model = models.build(self.target, spec, seed=spec.seed + 1 + self.rank)
        if self.is_rank:
            model = fixes.before_wrap(model, spec.fixes)
        calls = _count_calls(model)
        names = Names(model)
        self._bare = model
        self._check_seeded(names, model)
        batches = batches_of(self.target, spec)
        size = batch_size(self.target, batches[0])
        set_default_dtype(spec)
        isolation.seed_everything(spec.seed + 1 + self.rank)
        wrapped = self._wrap(model, size)
        self._check_start(names, wrapped)
        recorder = ComparingRecorder(
            reader=self.reader,
            rtol=spec.rtol,
            rank=self.rank,
            rows=self._rows(size),
        )
        training = self._training(wrapped, names, recorder, size)
        recorder.uncomparable = lambda: self._uncomparable(calls)
        self._train(training, recorder, self._shards(batches))
        self._tell(training, recorder)

    def _wrap(self, model: nn.Module, size: int) -> nn.Module:
        spec = self.spec
        if spec.mode == "single":
            return model
        if spec.mode == "dp":
            return DataParallelOnCPU(
                model, spec.world_size, lambda a, b: self._replica(a, b, size)
            )
        wrapped = models.wrap(self.target, model, find_unused=self.find_unused)
        if spec.mode == "averaged":
            wrapped = averaged.replace_ddp(wrapped)
        wrapped = fixes.after_wrap(wrapped, spec.fixes)
        names = fixes.argument(spec.fixes, "loss.global")
        if names is None:
            return wrapped
        rows = tree.shard_range(size, self.rank, spec.world_size)
        return fixes.global_loss(wrapped, model, names.split(","), rows)

    def _training(
        self, wrapped: nn.Module, names: Names, recorder: ComparingRecorder, size: int
    ) -> Training:
        return Training(
            target=self.target,
            model=wrapped,
            optimizer=models.make_optimizer(self.target, wrapped),
            names=names,
            recorder=recorder,
            loss=self._loss(),
            around_step=lambda step: self._around(step, size),
            after_step=lambda: fixes.after_step(wrapped, self.spec.fixes),
            on_update=self._note_update,
            vector_loss=self.spec.world_size if self.spec.mode == "dp" else 0,
        )

    def _note_update(self) -> None:
        self.seen.events.append("S")
        if self.seen.depth:
            self.facts["updates_in_backward"] = True

    def _loss(self) -> Callable[[Any, Any], Any] | None:
        loss = loss_function(self.target, self.spec)
        if loss is None or fixes.argument(self.spec.fixes, "loss.global") is None:
            return loss

        def alone(output: Any, targets: Any) -> Any:
            with without_group():
                return loss(output, targets)

        return alone

    def _train(
        self,
        training: Training,
        recorder: ComparingRecorder,
        batches: list[Any],
    ) -> None:
        def emitting() -> Iterator[Any]:
            for step, batch in enumerate(batches):
                if step:
                    self._emit(training, recorder, step - 1)
                yield batch

        self._batches = batches
        self._step = 0
        self.seen.on_collective = lambda name, count: self.context.emit(
            CollectiveCount(count=count, name=name, step=self._step)
        )
        if self.is_rank:
            self.seen.on_backward = lambda count: self.context.emit(
                BackwardCount(count=count, step=self._step)
            )
        try:
            with (
                fixes.around_training(
                    self.spec.fixes, self._targets, lambda: self._bare
                ),
                self._backward(training),
            ):
                training.run(emitting())
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 (user code, told as data)
            self.raised = describe(error)
            self._emit(training, recorder, training.step)
            return
        self._emit(training, recorder, len(batches) - 1)

    def _targets(self) -> Any:
        """Returns what the current step's loss may count in, on this rank."""
        return countables.targets_of(self.target, self._batches[self._step])

    def _backward(self, training: Training) -> Any:
        """Returns what stands around the backward passes of this mode."""
        if self.spec.mode == "averaged":
            unused: set[str] = set()
            self.facts["local_none"] = unused
            return averaged.averaging(training.parameters, unused)
        if self.spec.permute:
            return rounding.rescaled(training.parameters)
        return contextlib.nullcontext()

    def _emit(
        self, training: Training, recorder: ComparingRecorder, step: int
    ) -> None:
        loss = training.losses[step] if step < len(training.losses) else None
        self.context.emit(recorder.finish(step, loss))

    def _shards(self, batches: list[Any]) -> list[Any]:
        whole = fixes.argument(self.spec.fixes, "loss.global") is not None
        if not self.is_rank or whole:
            return batches
        return [tree.shard(b, self.rank, self.spec.world_size) for b in batches]

    def _rows(self, size: int) -> tuple[int, int, int]:
        if not self.is_rank:
            return 0, size, size
        return (*tree.shard_range(size, self.rank, self.spec.world_size), size)

    @contextlib.contextmanager
    def _around(self, step: int, size: int) -> Iterator[None]:
        self._step = step
        noise = None
        if self.spec.mode != "dp":
            start, rows, _ = self._rows(size)
            noise = self._noise(step, start, rows, size)
        with _autocast(self.spec), bound(noise):
            yield

    @contextlib.contextmanager
    def _replica(self, start: int, rows: int, size: int) -> Iterator[None]:
        with _autocast(self.spec), bound(self._noise(self._step, start, rows, size)):
            yield

    def _noise(self, step: int, start: int, rows: int, size: int) -> SampleNoise | None:
        if self.spec.noise != "sample":
            return None
        return SampleNoise(
            seed=self.spec.seed,
            step=step,
            shapes=self.reader.index.facts["shapes"][step],
            start=start,
            size=rows,
            total=size,
        )

    def _check_seeded(self, names: Names, model: nn.Module) -> None:
        """Rank 0 must start from the reference's weights; others may be overwritten."""
        if self.rank != 0:
            return
        for name, parameter in names.parameters(model).items():
            if self._differs("initial", name, parameter):
                raise _unseeded(self.target, name)

    def _check_start(self, names: Names, wrapped: nn.Module) -> None:
        """Notes which weights differ from the reference's before the first step."""
        differ = [
            name
            for name, parameter in names.parameters(wrapped).items()
            if self._differs("initial", name, parameter)
        ]
        self.facts["start_differs"] = differ
        self.facts["order"] = names.order
        self.facts["start_buffers_differ"] = [
            name
            for name, buffer in names.buffers(wrapped).items()
            if self._differs("initial_buffers", name, buffer)
        ]

    def _differs(self, quantity: str, name: str, tensor: torch.Tensor) -> bool:
        if name not in self.reader.names(quantity, 0):
            return False
        reference = self.reader.get(quantity, 0, name)
        mine = as_dense(tensor)
        if reference is not None:
            mine = mine.to(reference.dtype)
        return (
            reference is None
            or reference.shape != mine.shape
            or not torch.equal(reference.nan_to_num(), mine.nan_to_num())
        )

    def _uncomparable(self, calls: dict[str, int]) -> set[str]:
        """Returns modules that were called another number of times than expected.

        A running average of four updates is not comparable with one of two; that
        happens where a module is called per chunk of samples (ghost batch norm).
        """
        replicas = self.spec.world_size if self.spec.mode == "dp" else 1
        found: dict[str, tuple[float, float]] = {}
        for name, total in self.reader.index.facts["calls"].items():
            expected = total / self.spec.steps
            mine = calls.get(name, 0) / (self._step + 1) / replicas
            if mine != expected:
                found[name] = (expected, mine)
        if found:
            self.facts["uncomparable"] = found
        return set(found)

    def _tell(self, training: Training, recorder: ComparingRecorder) -> None:
        self.facts["not_compared"] = recorder.not_compared
        self.facts["collectives"] = len(self.seen.collectives)
        self.facts["asks_distributed"] = self.seen.asks_distributed
        self.facts["events"] = "".join(self.seen.events)
        self.facts["static_graph"] = any(w.module.static_graph for w in self.seen.wrapped)
        self.facts["comm_hooks"] = self.seen.comm_hooks
        self.facts["nested_backwards"] = self.seen.nested_backwards
        self.facts["opaque_output"] = self.seen.opaque_output
        alive = {id(m) for m in training.model.modules()}
        self.facts["forwards"] = [
            w.forwards for w in self.seen.wrapped if id(w.module) in alive
        ]
        self.facts["applied_after_wrap"] = self.seen.applied_after_wrap
        if self.spec.mode == "ddp":
            self.facts |= wrapping.facts(
                self.seen.wrapped, training.parameters(), training.names
            )


class DtypeRefusedError(RuntimeError):
    """The model puts its own parameters back into another dtype."""


def _check_dtypes(
    before: dict[str, torch.dtype], parameters: dict[str, nn.Parameter]
) -> None:
    """Refuses a dtype that the forward undoes: `self.head.to(torch.float32)`.

    Under DDP that would replace the tensors that its reducer watches, a fault of the
    check and not of the model.
    """
    for name, parameter in parameters.items():
        if parameter.dtype != before.get(name, parameter.dtype):
            message = f"its forward casts {name} to {parameter.dtype}"
            raise DtypeRefusedError(message)


def loss_function(target: Target, spec: RunSpec) -> Callable[[Any, Any], Any] | None:
    """Returns the loss of a run: the target's own, or the built-in that replaces it."""
    if spec.loss == "asis":
        return target.loss
    from ddpcheck.zoo import losses  # noqa: PLC0415 (only where asked for)

    builtin: Callable[[Any, Any], Any] = losses.BUILTIN[spec.loss]
    return builtin


def batches_of(target: Target, spec: RunSpec) -> list[Any]:
    """Returns the global batch of every step, in the dtype of the run.

    Raises:
        UsageError: target-raises.
    """
    isolation.seed_everything(spec.seed)
    try:
        batches = [target.batch_at(step) for step in range(spec.steps)]
    except Exception as error:
        raise _raises(target, error) from error
    constant = torch.get_default_dtype()
    if spec.constants != models.NATIVE:
        batches = [models.cast_batch(b, spec.dtype) for b in batches]
    torch.set_default_dtype(constant)
    if spec.shuffle:
        order = _permutation(batch_size(target, batches[0]))
        batches = [tree.permute(b, order) for b in batches]
    if spec.tile:
        batches = [_tiled(b, spec.tile) for b in batches]
    if spec.permute:
        order = _permutation(batch_size(target, batches[0]))
        batches = [tree.permute(b, order) for b in batches]
    return batches


def _tiled(batch: Any, copies: int) -> Any:
    """Returns the batch with every shard replaced by the first one."""
    first = tree.shard(batch, 0, copies)
    return tree.replace(first, lambda _, t: torch.cat([t] * copies) if t.dim() else t)


def _permutation(size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.randperm(size, generator=generator)


def set_default_dtype(spec: RunSpec) -> None:
    """Sets the dtype of tensors that user code makes on its way."""
    wide = spec.dtype == "float64" and spec.constants == "float64"
    torch.set_default_dtype(torch.float64 if wide else torch.float32)


@contextlib.contextmanager
def bound_noise(
    spec: RunSpec, total: int, start: int = 0, rows: int | None = None
) -> Iterator[None]:
    """Noise of a probe's single step, bound to samples where the run binds it.

    The reference's shapes are not at hand in a probe: a draw whose first dimension is
    a multiple of the shard's samples is taken to be per sample.
    """
    if spec.noise != "sample":
        yield
        return
    size = total if rows is None else rows
    noise = SampleNoise(
        seed=spec.seed, step=0, shapes=None, start=start, size=size, total=total
    )
    noise.guess = size != total
    with noise:
        yield


@contextlib.contextmanager
def _autocast(spec: RunSpec) -> Iterator[None]:
    if spec.dtype not in ("bfloat16", "float16"):
        yield
        return
    with torch.autocast(spec.device.partition(":")[0], dtype=getattr(torch, spec.dtype)):
        yield


@contextlib.contextmanager
def _counting(step: int) -> Iterator[DrawCounter | None]:
    """Counts random operations where the generator has moved: step 0 only."""
    if step > 0:
        yield None
        return
    before = torch.get_rng_state()
    counter = DrawCounter()
    yield counter
    if not torch.equal(before, torch.get_rng_state()):
        counter.count += 1


def _count_calls(model: nn.Module) -> dict[str, int]:
    """Counts forward calls of the modules that own buffers."""
    calls: dict[str, int] = {}

    def counting(name: str) -> Callable[..., None]:
        def count(*_: Any) -> None:
            calls[name] = calls.get(name, 0) + 1

        return count

    for name, module in model.named_modules():
        if module._buffers:  # noqa: SLF001
            calls[name] = 0
            module.register_forward_pre_hook(counting(name))
    return calls


def _has_batch_norm(model: nn.Module) -> bool:
    from ddpcheck.run import batch_norm  # noqa: PLC0415

    return batch_norm.has_batch_norm(model)


def _learning_rate(optimizer: Any) -> float | None:
    groups = getattr(optimizer, "param_groups", [])
    value = groups[0].get("lr") if groups else None
    return float(value) if value is not None else None


def _replace(result: Any, **changes: Any) -> Any:
    import dataclasses  # noqa: PLC0415

    return dataclasses.replace(result, **changes)


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else ""


def _raises(target: Target, error: Exception) -> UsageError:
    told = describe(error)
    line = ""
    if told.where and told.where.rpartition(":")[0] == target.path:
        line = f" (line {told.where.rpartition(':')[2]})"
    elif told.where:
        line = f" ({Path(told.where.rpartition(':')[0]).name} line {told.where.rpartition(':')[2]})"
    return UsageError(
        Problem(
            slug="target-raises",
            message=f"{target.name} does not train in one process",
            expected="model, batch, loss and optimizer that do three steps",
            found=f"{told.type_name}: {_first_line(error)}{line}",
            fix="make one plain training step work first",
        )
    )


def _unseeded(target: Target, name: str) -> UsageError:
    return UsageError(
        Problem(
            slug="target-unseeded",
            message=f"{target.name}: model() makes other weights each time",
            expected="the same initial weights from every call",
            found=f"{name} differs between two calls of model()",
            fix="call torch.manual_seed(0) at the start of model()",
        )
    )
