"""The reference: a single process on the global batch, written to a trace."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ddpcheck.compare import tree
from ddpcheck.compare.trace import Writer
from ddpcheck.errors import raised
from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks import devices
from ddpcheck.ranks import folder as folders
from ddpcheck.ranks.worker import Context
from ddpcheck.run import intervention
from ddpcheck.run.facts import Group, Orders, ReferenceFacts, TraceFacts, of_trace
from ddpcheck.run.interventions import apply as fixes
from ddpcheck.run.interventions.substitutes import addends, orders
from ddpcheck.run.model import contents, finite, sizing, user_code
from ddpcheck.run.model import model as models
from ddpcheck.run.model.draws import Shape
from ddpcheck.run.model.names import Names
from ddpcheck.run.model.noise import SampleNoise, bound
from ddpcheck.run.model.whole import wholes
from ddpcheck.run.modes import memory
from ddpcheck.run.modes.jobs.batches import (
    batches_of,
    check_collate,
    does_not_train,
    first_line,
    given,
    has_masked,
)
from ddpcheck.run.modes.single import SINGLE
from ddpcheck.run.observe import countables, external_state, observe, patches, samples
from ddpcheck.run.process import isolation
from ddpcheck.run.process.loading import fingerprint, forget, load
from ddpcheck.run.record import scales, writing
from ddpcheck.run.record.optimizers import WrittenStates
from ddpcheck.run.record.writing import WritingRecorder
from ddpcheck.run.spec import (
    NATIVE,
    ReferenceResult,
    RunSpec,
    StepBegin,
)
from ddpcheck.run.steps import Training, batch_size
from ddpcheck.run.surroundings import (
    count_calls,
    loss_function,
    noticing_draws,
)
from ddpcheck.target.target import Target, TargetRef

if TYPE_CHECKING:
    from typing_extensions import Self

_AS_ASKED = RunSpec(mode=SINGLE.name).constants  # until a run has shown what works


def reference(
    context: Context,
    *,
    ref: TargetRef,
    spec: RunSpec,
    room: memory.Room | None = None,
) -> ReferenceResult:
    """Runs a single process on the global batch and records everything.

    In float64; a model that fails in it runs in float32, then without casts. A run that
    does not fit into `room` is a usage error.
    """
    started = time.perf_counter()
    try:
        result = _attempts(context, ref, spec, room)
    except UsageError as error:
        return ReferenceResult(problem=error.problem)
    return _replace(result, seconds=time.perf_counter() - started)  # type: ignore[no-any-return]


def _attempts(
    context: Context, ref: TargetRef, spec: RunSpec, room: memory.Room | None
) -> ReferenceResult:
    """Returns the first attempt that works; raises the last one's problem.

    Each begins with the target as it was imported: one that was refused may have left
    half a step's counters.
    """
    fresh, refused = _Fresh.of(ref), None
    for attempt in _specs(fresh, spec):
        try:
            with isolation.isolated(), observe.observing() as seen:
                made = _Reference(context, fresh.target, attempt, seen, room)
                result = made.execute()
        except UsageError:
            raise
        except Exception as error:
            if raised.is_own(error):
                raise
            refused = error
            traceback.clear_frames(error.__traceback__)  # they hold the model
            fresh.renew()
            continue
        warnings = (*result.warnings, *_why(attempt, refused))
        is_clean = fresh.is_clean and not fresh.is_touched
        return _replace(result, warnings=warnings, is_clean=is_clean)  # type: ignore[no-any-return]
    assert refused is not None
    raise does_not_train(fresh.target, refused, _hint(fresh, spec)) from refused


@dataclass(slots=True)
class _Fresh:
    """A target as it was imported, for one attempt after another."""

    ref: TargetRef
    target: Target
    state: int
    is_clean: bool = True

    @classmethod
    def of(cls, ref: TargetRef) -> Self:
        """Returns the target that `ref` names."""
        target = load(ref)
        return cls(ref, target, fingerprint(target))

    @property
    def is_touched(self) -> bool:
        """Whether its modules have changed since."""
        return fingerprint(self.target) != self.state

    def renew(self) -> None:
        """Imports the target again if its modules have changed."""
        if not self.is_touched:
            return
        forget(self.target)
        self.target, self.is_clean = load(self.ref), False
        self.state = fingerprint(self.target)


def _specs(fresh: _Fresh, spec: RunSpec) -> Iterator[RunSpec]:
    """Yields the specs to try: float64, float32, then no cast at all.

    A requested dtype is the only one. With autocast weights stay float32: a model that
    creates weights in the dtype of autocast may fail with these.
    """
    if spec.constants == NATIVE:
        yield spec
        return
    dtypes = [spec.dtype] if spec.dtype != "auto" else ["float64", "float32"]
    for dtype in dtypes:
        if dtype == "float64":
            yield spec.but(dtype=dtype, constants="float64")
        yield spec.but(dtype=dtype, constants="float32")
    own = _own_dtype(fresh, spec)
    if own and (spec.dtype == "auto" or own == spec.dtype != "float64"):
        yield spec.but(dtype=own, constants=NATIVE)


def _own_dtype(fresh: _Fresh, spec: RunSpec) -> str:
    """Returns the dtype in which the target creates its weights, the lowest of several.

    Returns "" if they and the batch are float32 and are not cast, and for runs of the
    diagnosis, whose dtype is fixed.
    """
    if spec.constants != _AS_ASKED:
        return ""
    native = spec.but(dtype="float32", constants=NATIVE, steps=1)
    try:
        with isolation.isolated(), observe.observing():
            seed = user_code.REFERENCE_SEED
            model = user_code.model(fresh.target, native, seed=seed)
            batch = user_code.batches(fresh.target, native)[0]
    except Exception:  # noqa: BLE001 (user code)
        return ""
    finally:
        fresh.renew()
    tensors = [*contents.tensors(model), *tree.held(batch)]
    if all(t.dtype is torch.float32 for t in tensors if t.is_floating_point()):
        return ""
    own = {p.dtype for p in contents.parameters(model) if p.is_floating_point()}
    lowest = max(own, key=lambda dtype: torch.finfo(dtype).eps, default=None)
    name = str(lowest).removeprefix("torch.")
    return name if name in models.DTYPES else ""


def _why(attempt: RunSpec, refused: Exception | None) -> list[str]:
    """Returns why a run has not the dtype that is tried first, as a warning."""
    is_cast = attempt.constants != NATIVE
    if refused is None or (is_cast and attempt.dtype == "float64"):
        return []
    is_full = isinstance(refused, torch.OutOfMemoryError)
    tried = "float64" if is_cast else "to be cast"
    why = "float64 has no room" if is_full else f"the model refuses {tried}"
    how = "" if is_cast else ", with the tensors that the target makes"
    what = f"{type(refused).__name__}: {first_line(refused)}"
    return [f"{why}, so it ran in {attempt.dtype}{how}: {what}"]


def _hint(fresh: _Fresh, spec: RunSpec) -> str | None:
    """Returns what to do where it was the dtype that was asked for; None: all else."""
    own = _own_dtype(fresh, spec) if spec.dtype != "auto" else ""
    if own in ("", spec.dtype):
        return None
    return f"leave --dtype {spec.dtype} out: the target makes its weights in {own}"


class _Reference:
    """A single process on the global batch."""

    def __init__(
        self,
        context: Context,
        target: Target,
        spec: RunSpec,
        seen: observe.Observed,
        room: memory.Room | None,
    ) -> None:
        self.target, self.spec, self.seen, self.room = target, spec, seen, room
        self.updates_in_backward = False
        self.emit = context.emit
        self.folder = Path(context.seat.folder)
        self.name = f"trace-{context.seat.name}-{time.monotonic_ns()}"
        self.shapes: list[list[Shape | None]] = []
        self.draws = 0
        self.draws_later = False  # in another step than the first
        self.size = 0  # of the first batch
        self.kind = ""  # the class of the model
        self.given: ReferenceFacts = {}  # of the batches
        self.collates = False  # they are made of lists of samples
        self.rows: list[list[samples.Numbers]] = []  # of each call, by step

    def execute(self) -> ReferenceResult:
        """Builds and trains; returns the path of the trace and the observed facts."""
        model = models.build(self.target, self.spec, seed=user_code.REFERENCE_SEED)
        self.kind = type(model).__name__  # `fully_shard` gives it another class
        calls = count_calls(model)
        batches = batches_of(self.target, self.spec)
        check_collate(self.target, batches)
        self.collates = any(tree.num_samples(b) is not None for b in batches)
        isolation.seed_everything(self.spec.seed)
        # As on ranks: after the batches and, where there is one, the wrapper.
        optimizer = models.make_optimizer(self.target, self.spec, model)
        sizes = sizing.of(model, optimizer, self.spec.steps)
        folder = folders.place(self.folder, sizes.recorded)
        self.sizes = sizing.with_place(sizes, folder == self.folder)
        memory.check(self.target.name, self.sizes, [(SINGLE.name, 1)], self.room)
        sizing.use_cores(model)  # until `isolated` ends
        writer = Writer(folder / self.name, folders.on_disk(self.folder))
        try:
            return self._train(model, optimizer, batches, writer, calls)
        except BaseException:
            writer.discard()
            raise

    def _note_batches(self, batches: list[Any]) -> int:
        """Notes what the batches hold; returns the samples of the first.

        Raises:
            UsageError: one cannot be divided into samples.
        """
        sizes = [batch_size(self.target, batch) for batch in batches]
        self.given = given(batches, samples.named_lists(batches, sizes))
        if self.spec.loss == "masked":
            self.given["masks"] = has_masked(batches)
        if not self.spec.rows and not self.spec.tile:
            for batch, number in zip(batches, sizes, strict=True):
                samples.check_divisible(self.target, batch, number)
        return sizes[0]

    def _train(
        self,
        model: nn.Module,
        optimizer: Any,
        batches: list[Any],
        writer: Writer,
        calls: dict[str, int],
    ) -> ReferenceResult:
        names = Names(model)
        writer.add("initial", 0, wholes(names.parameters(model)).items())
        writer.add("initial_buffers", 0, wholes(names.buffers(model)).items())
        self.size = size = self._note_batches(batches)
        user_code.compute(self.spec)
        recorder = WritingRecorder(writer)
        notes = WrittenStates(model, names, writer=writer)
        training = Training(
            target=self.target,
            model=model,
            optimizer=optimizer,
            names=names,
            recorder=recorder,
            spec=self.spec,
            loss=loss_function(self.target, self.spec),
            around_step=lambda step: self._around(step, size),
            after_step=lambda: writer.add(
                external_state.QUANTITY, training.step, kept.moved().items()
            ),
            on_update=self._note_update,
            notes=notes,
            takes_all=True,
        )
        self.seen.on_roots = lambda roots: notes.reads(roots, training.step)
        kept = external_state.ExternalState(self.target, model, optimizer)
        kept.begin()
        self.loads_before = self.seen.loads
        if self.spec.watch:
            self._watch(training, batches)
        before = {name: p.dtype for name, p in names.parameters(model).items()}
        asked = intervention.substituted(self.spec.fixes, "orders") is not None
        with (
            fixes.around_training(
                self.spec.fixes,
                lambda: countables.targets_of(self.target, batches[training.step]),
                lambda: model,
            ),
            orders.recorded(
                lambda: training.step, on=asked or self.spec.watch
            ) as drawn,
            self._addends(training, writer),
        ):
            training.run(iter(batches))
        _check_dtypes(before, names.parameters(model))
        finite.check(self.target.name, training.losses, recorder.not_finite, batches)
        writer.index.facts = notes.facts()
        return self._finished(training, writer, model, calls, drawn)

    def _note_update(self) -> None:
        self.updates_in_backward |= self.seen.depth > 0

    def _addends(self, training: Training, writer: Writer) -> Any:
        """Returns what notes a loss's addends, where a fix gives them to ranks."""
        numbers = intervention.addends(self.spec.fixes)
        if not numbers:
            return contextlib.nullcontext()
        step = lambda: training.step  # noqa: E731 (asked for as steps go by)
        return addends.recorded(training.model, writer, step, numbers)

    def _finished(
        self,
        training: Training,
        writer: Writer,
        model: nn.Module,
        calls: dict[str, int],
        drawn: Orders,
    ) -> ReferenceResult:
        """Closes the trace; returns the facts of the training."""
        sums = writing.unfinished_of(writer, training)
        still = writing.standstill_of(writer, training)
        use = writing.used_of(writer.index, training)
        facts = self._facts(model, training, self.size)
        # Frozen at the end, with gradients in the last step: frozen and unfrozen in
        # turns.
        trained = writing.with_gradient(writer.index, self.spec.steps - 1)
        in_turn = [n for n in facts["untrained"] if n in trained]
        in_trace: TraceFacts = {
            **of_trace(writer.index),
            "calls": dict(calls),
            "shapes": self.shapes,
            "schedule": training.schedule,
            "members": training.members,
            "orders": drawn,
            "unfinished": sums.steps,
            "updates_in_backward": self.updates_in_backward,
            "buffers": scales.kinds(writer, model, self.spec.steps),
        }
        writer.index.facts = in_trace
        writer.close()
        return ReferenceResult(
            trace=str(writer.path),
            spec=self.spec,
            warnings=tuple(devices.warnings(self.spec.device, self.spec.dtype, model)),
            losses=tuple(training.losses),
            facts={
                **facts,
                "unused": use.never,
                "idle": use.not_always,
                "untaken": use.untaken,
                "in_turn": in_turn,
                "shuffles": bool(drawn),
                "loads": bool(self.seen.loads),
                "unfinished": sums.steps,
                "never_updates": sums.are_all,
                "nothing": still.why,
                "at_rest": still.is_at_rest,
                "closes": training.closes,
            },
        )

    def _watch(self, training: Training, batches: list[Any]) -> None:
        """Notes the samples of every call; of a plain step, those it is given."""
        if self.target.train_step is None:
            self.rows = [[samples.sample_numbers(batch)] for batch in batches]
            return
        self.rows = [[] for _ in batches]
        if self.collates:  # the model's input depends on the other samples of the shard
            return

        def note(told: samples.Numbers) -> None:
            self.rows[training.step].append(told)

        samples.watch_samples(training.model, note)

    def _facts(self, model: nn.Module, training: Training, size: int) -> ReferenceFacts:
        names = training.names
        return {
            "batch_size": size,
            "num_parameters": sum(p.numel() for p in contents.parameters(model)),
            "num_tensors": len(names.order),
            "model": self.kind,
            "optimizer": type(training.optimizer).__name__,
            "learning_rate": _learning_rate(training.optimizer),
            "has_batch_norm": _has_batch_norm(model),
            "has_buffers": any(True for _ in contents.buffers(model)),
            "has_wrap": self.target.wrap is not None,
            "has_train_step": self.target.train_step is not None,
            "collates": self.collates,
            "asks_distributed": self.seen.asks_distributed,
            "draws": self.draws,
            "draws_later": self.draws_later,
            "rows": self.rows,
            **self.given,
            "untrained": [
                n for n, p in names.parameters(model).items() if not p.requires_grad
            ],
            "settings": self.target.settings,
            "updates": training.updates,
            "loss_dtype": training.loss_dtype,
            "schedule": training.schedule,
            "members": training.members,
            "sizes": self.sizes,
            "parts": self._parts(training),
            "backwards": _for_each(self.seen.events.count("B"), training.schedule),
            "gpus": devices.count() if self.spec.device == "cuda" else 0,
        }

    def _parts(self, training: Training) -> list[str]:
        """Returns the parts of a training loop that the steps had."""
        found = set(self.seen.parts)
        if self.seen.loads > self.loads_before:
            found.add("data loader")
        if _changes_rate(training.schedule):
            found.add(patches.SCHEDULER)
        return sorted(found)

    @contextlib.contextmanager
    def _around(self, step: int, size: int) -> Iterator[None]:
        self.emit(StepBegin(step=step))
        if self.spec.noise != "sample":
            with noticing_draws(self.spec.device, lambda: self._note_draw(step)):
                yield
            return
        noise = SampleNoise(
            seed=self.spec.seed,
            step=step,
            shapes=None,
            start=0,
            size=size,
            total=size,
        )
        with devices.plain_kernels(self.spec.device), bound(noise):
            yield
        self.shapes.append(noise.shapes)
        self.draws += len(noise.shapes)

    def _note_draw(self, step: int) -> None:
        if step:
            self.draws_later = True
        else:
            self.draws = 1


class DtypeRefusedError(RuntimeError):
    """The model puts its own parameters back into another dtype."""


def _check_dtypes(
    before: dict[str, torch.dtype], parameters: dict[str, Tensor]
) -> None:
    """Refuses a dtype that the forward undoes: `self.head.to(torch.float32)`.

    Under DDP that would replace the tensors that its reducer watches, a fault of the
    check and not of the model.
    """
    for name, parameter in parameters.items():
        if parameter.dtype != before.get(name, parameter.dtype):
            raise DtypeRefusedError(f"its forward casts {name} to {parameter.dtype}")


def _has_batch_norm(model: nn.Module) -> bool:
    from ddpcheck.run.model import batch_norm  # noqa: PLC0415

    return batch_norm.has_batch_norm(model)


def _changes_rate(schedule: list[tuple[int, list[Group]]]) -> bool:
    """Returns whether learning rates differ between steps.

    The updates of one step may be of several optimizers.
    """
    rates: dict[int, list[Any]] = {}
    for step, groups in schedule:
        rates.setdefault(step, []).append([group.get("lr") for group in groups])
    first, *rest = [*rates.values()] or [[]]
    return any(len(it) == len(first) and it != first for it in rest)


def _for_each(backwards: int, updates: list[Any]) -> int:
    """Returns the backward passes of an update, 1 where updates differ in it."""
    count, rest = divmod(backwards, len(updates) or 1)
    return 1 if rest or not updates else max(1, count)


def _learning_rate(optimizer: Any) -> float | None:
    groups = getattr(optimizer, "param_groups", [])
    value = groups[0].get("lr") if groups else None
    return float(value) if value is not None else None


def _replace(result: Any, **changes: Any) -> Any:
    import dataclasses  # noqa: PLC0415

    return dataclasses.replace(result, **changes)
