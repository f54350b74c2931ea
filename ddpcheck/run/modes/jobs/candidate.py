"""A rank's part of a run, compared with the reference's trace as it goes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

from ddpcheck.compare import tree
from ddpcheck.compare.trace import Reader, opened
from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks import devices
from ddpcheck.ranks.messages import OwnTimeout
from ddpcheck.ranks.worker import Context, describe
from ddpcheck.run import private
from ddpcheck.run.facts import REFUSED, RankFacts, of_trace
from ddpcheck.run.intervention import substituted
from ddpcheck.run.interventions import apply as fixes
from ddpcheck.run.interventions.acts import Acts
from ddpcheck.run.interventions.rewriting import Rewrites
from ddpcheck.run.interventions.rows.gather import between_steps
from ddpcheck.run.interventions.substitutes.substitutes import (
    Substitutes,
    SubstitutingRecorder,
)
from ddpcheck.run.model import contents, sizing, user_code
from ddpcheck.run.model import model as models
from ddpcheck.run.model.names import Names
from ddpcheck.run.model.noise import SampleNoise, bound, undefined
from ddpcheck.run.model.whole import is_part
from ddpcheck.run.modes.jobs import rounding
from ddpcheck.run.modes.jobs.batches import (
    batches_of_rank,
    digests,
    global_batches,
    order_of,
)
from ddpcheck.run.modes.mode import InRank
from ddpcheck.run.modes.registry import mode_of
from ddpcheck.run.observe import countables, external_state, observe, wrapping
from ddpcheck.run.observe.samples import sample_numbers, watch_samples
from ddpcheck.run.process import isolation
from ddpcheck.run.process.loading import fingerprint, left, load
from ddpcheck.run.record import facts
from ddpcheck.run.record.optimizers import ComparedStates
from ddpcheck.run.record.recorders import ComparingRecorder
from ddpcheck.run.spec import RankResult, RefusedError, RowsSeen, RunSpec, Unlike
from ddpcheck.run.steps import Training, batch_size
from ddpcheck.run.surroundings import (
    count_calls,
    count_new_calls,
    unlike_calls,
)
from ddpcheck.target.target import Target, TargetRef


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
    entered = mode_of(spec.mode).enter(context, ref, spec)
    if isinstance(entered, RankResult):
        return entered
    has_server, context = entered is not context, entered
    rank = context.seat.rank
    try:
        target = load(ref)
    except UsageError as error:  # this rank's own: the reference could load it
        return _broken(rank, spec, error.__cause__ or error)
    try:
        clean = left(target)
        with isolation.isolated(), observe.observing() as seen:
            run = _Candidate(context, target, spec, opened(Path(trace)), find_unused)
            run.seen = seen
            run.execute()
    except UsageError as error:
        return RankResult(rank=rank, problem=error.problem)
    except Exception as error:  # noqa: BLE001 (user code; told as data)
        return _broken(rank, spec, error)
    return RankResult(
        rank=rank,
        raised=run.raised,
        dtype=spec.dtype,
        facts=run.facts,
        unlike=run.unlike,
        seconds=time.perf_counter() - started,
        is_clean=run.raised is None
        and not (has_server and REFUSED in run.facts)
        and clean == fingerprint(target),
    )


def _broken(rank: int, spec: RunSpec, error: BaseException) -> RankResult:
    told = describe(error)
    return RankResult(rank=rank, raised=told, dtype=spec.dtype, is_clean=False)


def _are_collated(batches: list[Any]) -> bool:
    """Returns whether the model's input depends on the other samples of a shard."""
    return any(tree.num_samples(batch) is not None for batch in batches)


class _Candidate:
    """This rank's part of a run of any mode but simulated ranks."""

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
        self.mode = mode_of(spec.mode)
        self.is_rank = self.mode.is_ranks
        self.raised: Any = None
        self._acts = Acts()
        self.facts: RankFacts = {"acts": self._acts.noted}
        self.seen = observe.Observed()
        self._rewrites: Rewrites | None = None
        self.unlike = Unlike()
        self._frozen: dict[str, None] = {}
        self._unfrozen: dict[str, None] = {}
        self._precision = rounding.Precision(reround=spec.reround)

    def _recorder(self, size: int) -> ComparingRecorder:
        return ComparingRecorder(
            reader=self.reader,
            rtol=self.spec.rtol,
            rank=self.rank,
            rows=self._rows(size),
            floors=dict(self.spec.floors),
            zeros_are_none=self.mode.has_replicas,
            calls_itself=self.target.train_step is not None,
        )

    def execute(self) -> None:
        """Builds, wraps and trains; emits each step, sets `raised` and `facts`."""
        spec = self.spec
        self.seen.on_timeout = lambda: self.context.emit(OwnTimeout())
        seat, seed = self.context.seat, user_code.seed_of_rank(spec, self.rank)
        model = models.build(self.target, spec, seed=seed, rank=seat.local[0])
        if self.is_rank:
            model = fixes.before_wrap(model, spec.fixes)
        counts = count_calls(model)
        names = Names(model)
        self._bare = model
        is_first = self.rank == 0
        if is_first or self.target.wrap is not None:  # DDP gives ranks the first one's
            self.facts["rounded_start"] = facts.align_start(
                self.target,
                self.reader,
                names,
                model,
                checks=is_first and not self.target.is_script,
            )
        batches = global_batches(self.target, spec)
        if self.rank == 0:
            self.facts["samples"] = digests(batches)
        size = batch_size(self.target, batches[0])
        user_code.compute(spec)
        isolation.seed_everything(seed)
        self._given = Substitutes(
            target=self.target,
            spec=spec,
            reader=self.reader,
            bare=model,
            batches=batches,
            rows=self._rows(size),
            step=lambda: self._step,
            is_rank=self.is_rank,
        )
        wrapped = self._wrap(model, names, size)
        count_new_calls(wrapped, counts)
        self.facts |= facts.at_start(self.reader, names, wrapped)
        rounding.jitter(model, spec.jitter)
        recorder = self._recorder(size)
        states = ComparedStates(wrapped, names, reader=self.reader, rtol=spec.rtol)
        training = self._training(wrapped, names, recorder, size)
        self._begin_late(model, names, wrapped)
        training.notes = states
        self.seen.on_roots = lambda roots: states.reads(roots, training.step)
        if not self.is_rank:
            sizing.use_cores(model)  # until `isolated` ends
        recorder.uncomparable = lambda: self._uncomparable(counts)
        mine = batches_of_rank(batches, spec, self.rank)
        if self.is_rank and spec.watch:
            self._tell_rows(mine)
        self._train(training, recorder, mine)
        self.facts["not_compared"] = recorder.not_compared
        self.facts["sample_lists"] = sorted(recorder.sample_lists)
        self.facts["epsilon"] = self._precision.epsilon
        self.facts |= facts.at_end(self.seen, training, self._bare)
        self.unlike = facts.unlike(self.seen, training, states)
        if self.mode.is_wrapped:
            self.facts |= self._wrapping(training)

    def _begin_late(self, model: nn.Module, names: Names, wrapped: nn.Module) -> None:
        """Notes the first weights of a script once more, at its first batch.

        It may load them after it has wrapped its model.
        """
        parts = any(is_part(p) for _, p in contents.named_parameters(model))
        if not self.target.is_script or self.spec.jitter or parts:
            return
        self._given.start_again(wrapped, names)
        if not self.rank:
            facts.align_start(self.target, self.reader, names, model, checks=True)
        for key in ("start", "start_buffers"):
            self.facts.pop(key, None)  # type: ignore[misc]
        self.facts |= facts.at_start(self.reader, names, wrapped)

    def _wrap(self, model: nn.Module, names: Names, size: int) -> nn.Module:
        self._in_rank = InRank(
            target=self.target,
            spec=self.spec,
            seat=self.context.seat,
            facts=self.facts,
            find_unused=self.find_unused,
            around_replica=lambda a, b: self._replica(a, b, size),
        )
        wrapped = self.mode.wrap(self._in_rank, model)
        return self._given.around_model(wrapped, names) if self.is_rank else wrapped

    def _training(
        self, wrapped: nn.Module, names: Names, recorder: ComparingRecorder, size: int
    ) -> Training:
        gives = substituted(self.spec.fixes, "gradients") is not None
        with fixes.around_building(self.spec.fixes):
            optimizer = models.make_optimizer(self.target, self.spec, wrapped)
        kept = external_state.ExternalState(self.target, self._bare, optimizer)
        return Training(
            target=self.target,
            model=wrapped,
            optimizer=optimizer,
            names=names,
            recorder=SubstitutingRecorder(recorder) if gives else recorder,
            spec=self.spec,
            loss=self._given.loss(),
            around_step=lambda step: self._around(step, size),
            after_step=lambda: self._after_step(names, wrapped, kept),
            on_update=self.seen.updated,
            after_update=lambda held: recorder.sharing.updated(
                held, reduces=self.seen.reduces_in_update
            ),
            unfinished=of_trace(self.reader.index)["unfinished"],
            vector_loss=self.spec.world_size if self.mode.has_replicas else 0,
        )

    def _after_step(
        self, names: Names, wrapped: nn.Module, kept: external_state.ExternalState
    ) -> None:
        # What an intervention answers is not for us.
        with private.no_torch_function(), between_steps():
            if self._rewrites is not None:
                self._rewrites.end()
            rounding.jitter(wrapped, self.spec.jitter)
            fixes.after_step(wrapped, self.spec.fixes)
            noted = self.facts.setdefault("beside", {})
            external_state.compare_state(
                kept, self.reader, self.spec, self._step, noted
            )
            self._given.after_step(wrapped, names)

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

        self._batches, self._step = batches, 0
        emit = self.context.emit
        self.seen.on_collective = lambda c: emit(observe.with_step(c, self._step))
        if self.target.train_step or self.target.optimizer:
            # Nothing else writes into gradients.
            self.seen.written.parameters = training.parameters
        watches = self.is_rank and self.spec.watch and not _are_collated(batches)
        if watches and self.target.train_step is not None:
            watch_samples(
                self._bare, lambda told: emit(RowsSeen(step=self._step, rows=told))
            )
        if self.is_rank:
            observe.report_calls(self.seen, emit, lambda: self._step)
        try:
            with (
                fixes.around_training(
                    self.spec.fixes, self._targets, lambda: self._bare, self._acts
                ),
                self._backward(training),
                self._given.around_steps(training.model, training.parameters),
                self._precision if self.spec.permute else contextlib.nullcontext(),
            ):
                training.run(emitting())
        except UsageError:
            raise
        except RefusedError as error:
            self.facts[REFUSED] = str(error)
            return
        except Exception as error:  # noqa: BLE001 (user code, told as data)
            self.raised = describe(error)
            self.facts |= undefined(error) | wrapping.lacking(error)
            self._emit(training, recorder, training.step)
            return
        self._emit(training, recorder, len(batches) - 1)

    def _targets(self) -> Any:
        # Targets or inputs in which the loss of the current step may count, on this
        # rank.
        return countables.targets_of(self.target, self._batches[self._step])

    def _backward(self, training: Training) -> Any:
        """Returns the context of the backward passes of this mode."""
        if self.mode.notes_rewrites:
            self._rewrites = Rewrites(self._bare, training.optimizer)
            self.facts["rewritten_before"] = self._rewrites.before
            self.facts["rewritten_after"] = self._rewrites.after
        if self.spec.permute:
            return rounding.rescaled(training.parameters)
        return self.mode.around_training(self._in_rank, training)

    def _emit(self, training: Training, recorder: ComparingRecorder, step: int) -> None:
        if self.mode.is_wrapped:
            self._note_turned(training)
        loss = training.losses[step] if step < len(training.losses) else None
        self.context.emit(recorder.finish(step, loss))

    def _note_turned(self, training: Training) -> None:
        # Parameters frozen or unfrozen now; a later step may change it again.
        parameters, wrapped = training.parameters(), self.seen.wrapped
        self._frozen |= dict.fromkeys(wrapping.frozen(wrapped, parameters))
        self._unfrozen |= dict.fromkeys(wrapping.unfrozen(wrapped, parameters))

    def _wrapping(self, training: Training) -> RankFacts:
        turned: RankFacts = {
            "frozen": list(self._frozen),
            "unfrozen": list(self._unfrozen),
        }
        parameters, wrapped = training.parameters(), self.seen.wrapped
        return wrapping.facts(wrapped, parameters, training.names) | turned

    def _tell_rows(self, mine: list[Any]) -> None:
        # The target's own step may select other samples: its calls report them.
        if self.target.train_step is None:
            for step, shard in enumerate(mine):
                rows = sample_numbers(shard)
                self.context.emit(RowsSeen(step=step, rows=rows))

    def _rows(self, size: int) -> tuple[int, int, int]:
        if not self.is_rank:
            return 0, size, size
        return (*tree.shard_range(size, self.rank, self.spec.world_size), size)

    @contextlib.contextmanager
    def _around(self, step: int, size: int) -> Iterator[None]:
        self._step = step
        if self._rewrites is not None:
            self._rewrites.begin(step)
        noise = None
        if not self.mode.has_replicas:
            start, rows, _ = self._rows(size)
            noise = self._noise(step, start, rows, size)
        samples = self.spec.noise == "sample"
        kernels = devices.plain_kernels(self.spec.device if samples else "cpu")
        with kernels, bound(noise):
            yield
        if noise is not None and not step:
            self.facts["stream"] = noise.stream

    @contextlib.contextmanager
    def _replica(self, start: int, rows: int, size: int) -> Iterator[None]:
        noise = self._noise(self._step, start, rows, size)
        with user_code.steps(self.spec), bound(noise, is_whole=False):
            yield

    def _noise(self, step: int, start: int, rows: int, size: int) -> SampleNoise | None:
        if self.spec.noise != "sample":
            return None
        noise = SampleNoise(
            seed=self.spec.seed,
            step=step,
            shapes=of_trace(self.reader.index)["shapes"][step],
            start=start,
            size=rows,
            total=size,
        )
        noise.order = order_of(self.spec, size)
        noise.of_weights = {tuple(p.shape) for p in contents.parameters(self._bare)}
        return noise

    def _uncomparable(self, calls: dict[str, int]) -> set[str]:
        """Returns modules that were called another number of times than expected."""
        found = unlike_calls(
            of_trace(self.reader.index)["calls"],
            calls,
            steps=self.spec.steps,
            done=self._step + 1,
            replicas=self.mode.replicas(self.spec.world_size),
        )
        if found:
            self.facts["uncomparable"] = found
        return set(found)
