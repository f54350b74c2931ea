"""The probe of the single-process run: one step, recorded for the ranks' probes.

The first pass cuts all module outputs and writes inputs, outputs and gradients to the
trace. Later passes change outputs, targets or the batch: see probes/coupling.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from ddpcheck.compare import tree
from ddpcheck.compare.trace import Writer
from ddpcheck.diagnose.probes import coupling, gradients, micro, training
from ddpcheck.diagnose.probes.coupling import Grads, Perturb
from ddpcheck.diagnose.probes.cuts import Attached, Cuts, leaf_of
from ddpcheck.diagnose.probes.evidence import (
    Couplings,
    Injected,
    Micro,
    ProbeFacts,
    ReferenceEvidence,
    Windows,
)
from ddpcheck.diagnose.probes.hooks import Hooks, hooked, key_of, paths_of, tensors_of
from ddpcheck.diagnose.probes.kept import Kept
from ddpcheck.diagnose.probes.micro import order_of_calls
from ddpcheck.ranks import folder as folders
from ddpcheck.ranks.worker import Context, describe
from ddpcheck.run.interventions import apply as fixes
from ddpcheck.run.model import contents, sizing, user_code
from ddpcheck.run.model import model as models
from ddpcheck.run.model.names import Names, shortener
from ddpcheck.run.model.noise import DrawCounter
from ddpcheck.run.modes.jobs.batches import batches_of
from ddpcheck.run.observe import countables, external_state
from ddpcheck.run.process import compiling, graphs, isolation
from ddpcheck.run.process.loading import borrowed
from ddpcheck.run.spec import RunSpec
from ddpcheck.run.steps import batch_size
from ddpcheck.run.surroundings import bound_noise
from ddpcheck.target.target import Target, TargetRef

# Passes that are done with and without the modules before these are left out: a loss
# may use other outputs in a nudge than in a copy (probes/coupling.py).
_TRIALS = 2
_MISSING = object()
# Autograd nodes that compute probabilities from scores.
_OF_SCORES = ("SoftmaxBackward", "LogSoftmaxBackward", "SigmoidBackward")


def record(
    context: Context,
    *,
    ref: TargetRef,
    spec: RunSpec,
    world_size: int,
    trains_before: bool = False,
) -> ReferenceEvidence:
    """Returns the evidence of the reference; the tensors are in its trace.

    `spec` is the reference's. `world_size`: number of shards that the ranks will have.
    `trains_before`: the steps before the last one are trained.
    """
    name = f"probe-{context.seat.name}-{time.monotonic_ns()}"
    folder = Path(context.seat.folder)
    writer = Writer(folder / name, folders.on_disk(folder))
    try:
        # A compiled function runs no hooks; uncompiled it computes the same.
        with borrowed(ref) as target, isolation.isolated(), compiling.off():
            probe = _Probe(target, spec, world_size, writer)
            return probe.run(trains_before=trains_before)
    except Exception as error:  # noqa: BLE001 (user code under hooks; reported as data)
        writer.discard()
        return ReferenceEvidence(failed=describe(error).stack)


_Found = Iterable[tuple[str, Tensor]]


class _Probe:
    def __init__(
        self,
        target: Target,
        spec: RunSpec,
        world_size: int,
        writer: Writer,
    ) -> None:
        self.target, self.spec = target, spec
        self.world_size, self.writer = world_size, writer
        self.model = models.build(target, spec, seed=user_code.REFERENCE_SEED)
        training.begin(target, spec, self.model)
        names = Names(self.model)
        writer.add("initial", 0, names.parameters(self.model).items())
        writer.add("initial_buffers", 0, names.buffers(self.model).items())
        *self.before, batch = batches_of(target, spec)
        self.batch = micro.alike_padded(target, batch)
        self.size = batch_size(target, self.batch)
        self.cuts = Cuts(self.size, tree.shard_range(self.size, 0, world_size)[1])
        self.rows: list[int] = []  # of every call of the model
        self.order: Tensor | None = None  # of the batch's rows; None: as they are
        self.draws, self.shortcut = DrawCounter(), Shortcut()
        self.built = DrawCounter()  # for a step that itself builds parts of the model
        self.attached: Attached | None = None
        self.after_backward = 1.0
        self.outputs: dict[tuple[int, str], Tensor] = {}  # leaves of this pass
        self.addends = gradients.Addends(self.writer)
        self.injected = Injected()

    def _in_trace(self, grads: Grads) -> ProbeFacts:
        """Returns what ranks read beside the tensors."""
        return {
            "cuts": list(dict.fromkeys(key for _, key in grads)),
            "data": self.cuts.data,
            "trained": self.cuts.flow.trained,
            "windows": self.cuts.windows,
            "on_the_way": self.cuts.flow.on_the_way(),
            "attached": self.attached is not None,
            "order": self.order,
            "addends": self._kinds_of_addends(),
        }

    def run(self, *, trains_before: bool) -> ReferenceEvidence:
        """Does the passes, writes the trace and returns the evidence."""
        sizing.use_cores(self.model)  # until `isolated` ends
        user_code.compute(self.spec)
        if self.before and trains_before:
            isolation.seed_everything(self.spec.seed)
            rows = 0, self.size, self.size
            model = training.Trained(self.model, self.model, Names(self.model))
            training.train_before(self.target, self.spec, model, self.before, rows)
        self.before.clear()
        self.kept = Kept(self.target, self.model)
        self._find_windows()
        self.cuts.dims = self._shard_shapes()
        held = external_state.generator_states(self.model)
        grads, loss, direct = self._first_pass()
        held_draws = external_state.generator_states(self.model) != held
        self.shortcut.choose(hooked(self.model), grads)
        for (number, key), grad in grads.items():
            self.writer.add("cut", number, [(key, grad)])
        self.writer.add("direct", 0, direct.items())
        if self.attached:
            every = gradients.of_parameters(self.model)
            self.writer.add("every", 0, every.items())
        whole = tuple(sorted(paths_of(self.cuts.whole) - paths_of(self.cuts.own())))
        direct_is_output = bool(direct) and self._is_used_through_outputs()
        drawn = self.draws if self.draws.count else self.built
        couplings = self._measure_couplings(grads)
        is_written = self._write_doubled(grads)
        # The outputs answer the same, unless a train_step does more with gradients.
        is_known = is_written and self.shortcut.is_proven and not self.target.train_step
        factor = None if is_known else self._doubled()
        self.writer.index.facts = self._in_trace(grads)
        self.writer.close()
        targets = countables.targets_of(self.target, self.batch)
        names = list(countables.names(targets))
        begin = (key for (_, key), grad in grads.items() if grad is not None)
        return ReferenceEvidence(
            trace=str(self.writer.path),
            loss=loss,
            after_backward=self.after_backward,
            couplings=couplings,
            doubled=factor,
            counts={n: countables.count(n, targets) for n in names},
            frontier=self.cuts.flow.frontier(begin),
            micros=self._micros(targets, names),
            addends=self._kinds_of_addends(),
            direct=tuple(direct),
            whole_outputs=whole,
            laid_outputs=self.cuts.laid(),
            direct_is_output=direct_is_output,
            draws=drawn.count,
            own_draws=tuple(drawn.own),
            own_seeds=frozenset(drawn.seeds),
            held_draws=held_draws,
            injected=self.injected,
        )

    def _micros(self, targets: Any, names: list[str]) -> tuple[Micro, ...]:
        windows = self.cuts.windows
        if windows.deal > 1:
            return micro.described_apart(self.batch, windows.sizes, names)
        return micro.described(windows.sizes, 0, targets, names)

    def _step(
        self, batch: Any, hooks: Hooks, drawn: DrawCounter | None = None
    ) -> training.Done:
        self._begin()
        try:
            with bound_noise(self.spec, self.size), drawn or contextlib.nullcontext():
                return self._trained(batch, puts_aside=not self.attached)
        finally:
            hooks.remove()

    def _trained(self, batch: Any, *, puts_aside: bool = False) -> training.Done:
        """Does a step with the fixes that act in the single-process run too."""

        def targets() -> Any:
            return countables.targets_of(self.target, batch)

        with (
            fixes.around_training(self.spec.fixes, targets, lambda: self.model),
            self.attached.noting() if self.attached else contextlib.nullcontext(),
        ):
            given = self.target, self.spec, self.model, batch, self._note_addends
            return training.step(*given, puts_aside=puts_aside)

    def _begin(self) -> None:
        self.kept.put_back()
        isolation.seed_everything(self.spec.seed)

    def _find_windows(self) -> None:
        """Finds the micro-batches, and the order of samples, of a user's train_step."""
        if self.target.train_step is None:
            return
        order = self._order_of_calls()
        if order is None or self.cuts.has_micros:
            return
        batch, self.batch = self.batch, tree.permute(self.batch, order)
        if self._order_of_calls() is None:
            self.order = order
        else:
            self.batch = batch  # the step shuffles; it does not sort

    def _order_of_calls(self) -> Tensor | None:
        """Returns the order in which the step passes the batch to the model."""
        batch = self.batch
        self.rows, order = order_of_calls(
            self.model, batch, lambda hooks: self._step(batch, hooks, self.built)
        )
        self.cuts.windows = micro.windows(self.rows, self.size)
        if self.target.split > 1:
            dealt = micro.dealt(self.rows, len(batch), self.target.split)
            self.cuts.windows = dealt or Windows(sizes=(self.size,))
        return order

    def _shard_shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the output shapes on rank 0's shard, which show what has samples."""
        shapes: dict[str, tuple[int, ...]] = {}
        counted = micro.RowCount()

        def after(name: str, call: int, _: nn.Module, output: Any) -> None:
            for path, t in tensors_of(output):
                shapes.setdefault(key_of(name, call, path), tuple(t.shape))
                if not name:
                    self.cuts.shard_outputs[key_of(name, call, path)] = t.detach()
            if not name and not call:
                self.injected = injected_by(self.model, output)

        hooks = Hooks(calls_per_micro=self.cuts.windows.calls)
        hooks.attach(self.model, counted.before, after)
        shard = tree.shard(self.batch, 0, self.world_size)
        self._begin()
        try:
            with bound_noise(self.spec, self.size, rows=self.cuts.shard_rows):
                self._trained(shard)
        except Exception:  # noqa: BLE001, S110 (a shard may be too small for the loss)
            pass
        finally:
            hooks.remove()
        self.cuts.windows = micro.picked(self.rows, counted.rows, self.cuts.windows)
        if counted.rows and (self.cuts.windows.picks or self.cuts.has_micros):
            self.cuts.shard_rows = counted.rows[0]
        self.cuts.is_given_samples = set(counted.rows) == {self.cuts.shard_rows}
        return shapes

    def _first_pass(self) -> tuple[Grads, float | None, dict[str, Tensor | None]]:
        """Does a pass that cuts all outputs; if it fails, the model's own; or attached.

        A cut ends the graph for a model whose forward differentiates (a force is the
        gradient of an energy), for a step that does so, or for hooks that keep the
        gradients of a module.
        """
        for _ in ("all", "outputs"):
            with contextlib.suppress(Exception):
                return self._cut_pass(self.batch, write=True)
            self.cuts.of_the_model_alone()
        self.attached = Attached()
        return self._cut_pass(self.batch, write=True)

    def _cut_pass(
        self,
        batch: Any,
        *,
        write: bool = False,
        perturb: Perturb | None = None,
        detach: AbstractSet[str] = frozenset(),
        is_short: bool = False,
    ) -> tuple[Grads, float | None, dict[str, Tensor | None]]:
        leaves: dict[tuple[int, str], Tensor] = {}

        def note(quantity: str, name: str, call: int, found: _Found) -> None:
            named = [(key_of(name, call, path), value) for path, value in found]
            self.writer.add(quantity, hooks.micro, named)

        def before(name: str, call: int, _: nn.Module, args: Any, kwargs: Any) -> None:
            if write:
                note("inputs", name, call, tensors_of((args, kwargs)))

        def after(name: str, call: int, module: nn.Module, output: Any) -> Any:
            if write:
                note("outputs", name, call, tensors_of(output))
                note("kept", name, call, contents.own_buffers(module))

            def cut(path: str, t: Tensor) -> Tensor:
                key = key_of(name, call, path or "output")
                place = hooks.micro, key
                if write:
                    self.cuts.flow.note(key, t)
                value = self.cuts.value(name, place, t, perturb)
                if value is None:
                    return t.detach() if key in detach else t
                if key in self.cuts.data:
                    return t if self.attached else value.clone()
                leaf = leaves[place] = leaf_of(value)
                self.cuts.flow.leaf(key, leaf)
                return self.attached.through(t, leaf) if self.attached else leaf.clone()

            made = tree.replace(output, cut)
            self.shortcut.note((hooks.micro, name, call), output, self.cuts.values)
            return made

        hooks = Hooks(calls_per_micro=self.cuts.windows.calls)
        hooks.attach(self.model, before, after)
        # Not in later passes: counting takes a third of their time.
        drawn = DrawCounter() if write else None
        self.draws = drawn or self.draws
        is_noted = write or self.addends.takes_twice
        self.outputs = leaves if is_noted and not self.attached else {}
        with self.shortcut.taken(hooks, is_taken=is_short):
            done = self._step(batch, hooks, drawn)
        self.outputs = {}
        self.after_backward = done.factor if write else self.after_backward
        grads = {
            place: None if leaf.grad is None else leaf.grad * done.factor
            for place, leaf in leaves.items()
        }
        # Attached cuts let all gradients pass.
        direct = {} if self.attached else gradients.past_all_cuts(self.model)
        return grads, done.loss, direct

    def _note_addends(self, loss: Tensor) -> None:
        self.addends.note(loss, {key: t for (_, key), t in self.outputs.items()})

    def _kinds_of_addends(self) -> tuple[str, ...]:
        is_one = not self.cuts.has_micros and self.after_backward == 1
        return self.addends.kinds if is_one else ()

    def _is_used_through_outputs(self) -> bool:
        """Returns whether the loss uses parameters through outputs without samples.

        A temperature is such an output. A penalty uses the parameters themselves.
        """
        if not self.cuts.whole:
            return False
        try:
            return not self._cut_pass(
                self.batch, perturb=lambda _, t: t, detach=self.cuts.whole
            )[2]
        except RuntimeError:  # the loss itself is an output without samples
            return False

    def _perturbed(self, perturb: Perturb, batch: Any) -> Grads:
        """Returns the gradients at changed outputs."""
        return self.shortcut.run(
            lambda: self._perturbed_whole(perturb, batch),
            lambda: self._cut_pass(batch, perturb=perturb, is_short=True)[0],
        )

    def _perturbed_whole(self, perturb: Perturb, batch: Any) -> Grads:
        """Returns the same, from a pass that runs all modules."""
        return self._cut_pass(batch, perturb=perturb)[0]

    def _measure_couplings(self, grads: Grads) -> Couplings:
        given = grads, self.cuts.place, self.batch, self.world_size
        found = coupling.measure(self._perturbed, *given)
        # Micro-batches have other shards. A step that sorts would undo a new order.
        if self.cuts.has_micros or self.order is not None:
            return found
        # With all modules: outputs without rows, as a length, follow the samples.
        ordered = coupling.measure_order(self._perturbed_whole, *given, self.spec.seed)
        return dataclasses.replace(found, ordered=ordered)

    def _write_doubled(self, grads: Grads) -> bool:
        """Writes the gradients on the repeated batch; returns whether there are any.

        Written are those at its first half. Compared with the batch itself, they are
        half as large for a mean over samples, and equal for a sum.
        """
        if self.cuts.has_micros or self.order is not None:  # as for couplings
            return False
        dim, written = self.cuts.dim, False
        self.addends.is_twice(dim if self._kinds_of_addends() else None)
        try:
            found = self._perturbed(
                lambda key, value: torch.cat([value, value], dim(key, value)),
                _twice(self.batch),
            )
        except Exception:  # noqa: BLE001 (fixed batch sizes, lookups by index)
            found = {}
        self.addends.is_twice(None)
        for (number, key), grad in grads.items():
            both = found.get((number, key))
            if grad is not None and both is not None:
                at = dim(key, grad)
                half = both.narrow(at, 0, grad.shape[at])
                self.writer.add("doubled", number, [(key, half)])
                written = True
        return written

    def _doubled(self) -> float | None:
        """Returns the factor of parameters' gradients on the repeated batch."""
        try:
            once, both = self._plain(self.batch), self._plain(_twice(self.batch))
        except Exception:  # noqa: BLE001 (fixed batch sizes, lookups by index)
            return None
        return gradients.one_factor(once, both)

    def _plain(self, batch: Any) -> dict[str, Tensor]:
        self._begin()
        self._trained(batch, puts_aside=True)
        return gradients.of_parameters(self.model)


def _twice(batch: Any) -> Any:
    if isinstance(batch, tree.Collated):
        return batch.rows(torch.arange(len(batch.samples)).repeat(2))
    return tree.replace(batch, lambda _, t: torch.cat([t, t]) if t.dim() else t)


class Shortcut:
    """Passes without the modules inside which no gradient of the loss begins.

    Every pass continues with each module's first outputs, changed or not. If two passes
    on changed outputs give the same gradients whether a module runs or returns its
    first output at once, later passes leave the module out. They then compute the loss
    and little else.
    """

    def __init__(self) -> None:
        self._returned: dict[tuple[int, str], Any] = {}  # by (micro-batch, call)
        self._left_out: list[nn.Module] = []
        self._trials_left = _TRIALS
        self._is_first = True  # no pass has ended

    @property
    def is_proven(self) -> bool:
        """Whether trials have shown that the chosen modules may be left out."""
        return bool(self._left_out) and not self._trials_left

    def note(
        self,
        place: tuple[int, str, int],
        output: Any,
        values: dict[tuple[int, str], Tensor],
    ) -> None:
        """Keeps the output of a call, given as (micro-batch, module, call).

        `values`: copies of outputs that are kept already, by (micro-batch, key).
        """
        if not self._is_first:
            return
        number, name, call = place

        def kept(path: str, tensor: Tensor) -> Tensor:
            key = key_of(name, call, path or "output")
            return values.get((number, key), tensor).detach()

        self._returned[number, f"{name}#{call}"] = tree.replace(output, kept)

    def choose(self, modules: dict[str, nn.Module], grads: Grads) -> None:
        """Chooses the modules inside which the loss has no gradient."""
        self._is_first = False
        keys = [key for (_, key), grad in grads.items() if grad is not None]
        begin = {key.rpartition("#")[0] for key in keys}
        self._left_out = [
            module
            for name, module in modules.items()
            if begin and not any(_is_inside(other, name) for other in begin)
        ]

    def run(self, whole: Callable[[], Grads], short: Callable[[], Grads]) -> Grads:
        """Returns the gradients of a pass, from `short` once the trials have passed.

        `whole` does the pass with all modules, `short` without the chosen ones.
        """
        if self.is_proven:
            with contextlib.suppress(Exception):  # a batch of another size
                return short()
            return whole()
        found = whole()
        if self._left_out:
            self._trials_left -= 1
            with contextlib.suppress(Exception):  # user code on outputs of another pass
                if _is_same(found, short()):
                    return found
            self._left_out = []
        return found

    @contextlib.contextmanager
    def taken(self, hooks: Hooks, *, is_taken: bool) -> Iterator[None]:
        """Makes the chosen modules return their first outputs, if `is_taken`."""

        def forward(*_: Any, **__: Any) -> Any:
            return self._returned[hooks.micro, hooks.open[-1]]

        owners = [vars(module) for module in self._left_out] if is_taken else []
        before = [own.get("forward", _MISSING) for own in owners]
        for own in owners:
            own["forward"] = forward
        try:
            yield
        finally:
            for own, value in zip(owners, before, strict=True):
                del own["forward"]
                own.update({} if value is _MISSING else {"forward": value})


def _is_inside(name: str, module: str) -> bool:
    """Returns whether a module is a part of another one."""
    return name != module and (not module or name.startswith(f"{module}."))


def _is_same(first: Grads, second: Grads) -> bool:
    """Returns whether all gradients of the first pass are equal in the second."""
    begin = [place for place, grad in first.items() if grad is not None]
    return all(
        (other := second.get(place)) is not None and torch.equal(first[place], other)  # type: ignore[arg-type]
        for place in begin
    )


def injected_by(model: nn.Module, output: Any) -> Injected:
    """Returns the parameters to which the model's own backward adds a gradient.

    The backward of an autograd function may add the gradient of an auxiliary loss that
    does not depend on the gradient at the output. With gradients of zero at the model's
    outputs, such parameters still get a gradient. The graph of the output is kept.
    """
    outputs = [t for t in tree.held(output) if t.requires_grad]
    behind = graphs.nodes(t.grad_fn for t in outputs)
    own = [n for n in behind if isinstance(n, BackwardCFunction)]  # Python functions
    if not own:
        return Injected()
    named = {n: p for n, p in contents.named_parameters(model) if p.requires_grad}
    try:
        found = torch.autograd.grad(
            outputs,
            list(named.values()),
            [torch.zeros_like(t) for t in outputs],
            retain_graph=True,
            allow_unused=True,
        )
    except Exception:  # noqa: BLE001 (user code; a reentrant checkpoint raises)
        return Injected()
    short = shortener(model)
    names = [
        short(name)
        for name, grad in zip(named, found, strict=True)
        if grad is not None and bool(grad.to_dense().any())
    ]
    return Injected(names=tuple(names), of_scores=bool(names) and _are_of_scores(own))


def _are_of_scores(own: Iterable[Any]) -> bool:
    """Returns whether the input of a function is computed from probabilities."""
    given = (n for node in own for n, _ in node.next_functions)
    return any(type(n).__name__.startswith(_OF_SCORES) for n in graphs.nodes(given))
