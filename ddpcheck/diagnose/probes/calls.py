"""What each module call on a rank returns, given the reference's inputs.

Teacher forcing: every module is called with the reference's inputs, and the network
goes on with the reference's outputs. So a module whose output differs neither hides the
next one nor makes the next one's output differ.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ddpcheck.compare import tree
from ddpcheck.compare.trace import Reader
from ddpcheck.diagnose.probes import micro, modules
from ddpcheck.diagnose.probes.cuts import Attached, Leaf, leaf_of
from ddpcheck.diagnose.probes.evidence import ModuleCall, of_trace
from ddpcheck.diagnose.probes.hooks import Hooks, key_of
from ddpcheck.diagnose.probes.rows import SAME, closest, distance
from ddpcheck.run import private
from ddpcheck.run.model import batch_norm, contents
from ddpcheck.run.model.noise import DrawCounter, SampleNoise
from ddpcheck.run.observe import external_state, observe
from ddpcheck.run.record import pairing

# (quantity, key, the rank's tensor) -> the reference's tensor
_Recorded = Callable[[str, str, Tensor], Tensor | None]
# A term of the loss has at most so many numbers: one per quantizer of a model, say.
# Statistics per channel have more.
_FEW = 64


@dataclass(slots=True)
class _Inputs:
    """The inputs of a call compared with the reference's; see ModuleCall.

    `worst`: the largest relative difference. `is_other`: some input is not a part of
    the single-process input and could not be replaced.
    """

    worst: float = 0.0
    is_other: bool = False
    repeats_first: bool = False
    keeps_some: bool = False

    def add(
        self, actual: Tensor, reference: Tensor, diff: float, *, is_first: bool
    ) -> None:
        """Adds an input, the reference's of all samples, and the relative difference.

        `is_first`: the rank has the first samples of the batch.
        """
        repeats = actual.shape[1:] == reference.shape[1:] and torch.equal(
            actual, reference[: len(actual)]
        )
        self.worst = max(self.worst, diff)
        if diff > SAME:
            self.repeats_first |= repeats
        elif is_first or not repeats:  # else the input is equal for all samples
            self.keeps_some = True


@dataclass(slots=True)
class _Call:
    """A module call from its beginning to its end.

    `key`: "NAME#NUMBER". `before`: see modules.versions. `collectives`, `draws`: how
    many there were before the call. `draws_of_parts`: by the modules inside.
    """

    name: str
    number: int
    module: nn.Module
    args: Any
    kwargs: Any
    inputs: _Inputs
    before: tuple[list[tuple[int, float]], list[float]]
    collectives: int
    draws: int
    draws_of_parts: int = 0
    writes: bool = False  # its own buffers
    worst: float | None = None  # relative difference of the outputs
    rows_first: bool = True
    numbers: list[tuple[float, float]] = field(default_factory=list)

    def key_of(self, path: str) -> str:
        """Returns the key of one of the call's tensors."""
        return key_of(self.name, self.number, path)

    def differs_by(self, diff: float) -> None:
        """Adds the difference of an output."""
        self.worst = max(self.worst or 0.0, diff)


class Calls:
    """Compares the module calls of one step with the reference's, and cuts the outputs.

    `seen`: what user code does in the step. `feeds_indices`: integer inputs of modules
    are replaced by the reference's too.
    """

    def __init__(self, reader: Reader, seen: observe.Observed) -> None:
        self.reader, self.seen = reader, seen
        self.modules: list[ModuleCall] = []
        self.leaves: list[Leaf] = []
        facts = of_trace(reader.index)
        self.cuts, self.data = set(facts["cuts"]), set(facts["data"])
        self.inside = facts["on_the_way"]
        self.attached = Attached() if facts["attached"] else None
        self.windows = facts["windows"]
        self.hooks = Hooks(calls_per_micro=self.windows.calls)
        self.open: list[_Call] = []  # the innermost is last
        self.first_weights: dict[str, list[float]] = {}  # at the first call, by module
        self.drawn = DrawCounter()  # of the step
        self.noise: SampleNoise | None = None
        self.silent: dict[str, list[nn.Module]] = {}
        self.feeds_indices = True
        self.rng = 0  # checksum of torch's generator state when the forward begins
        self.held_rng = 0  # checksum of the target's numpy and Python generators

    def watch(self, wrapped: nn.Module, model: nn.Module, cursor: micro.Cursor) -> None:
        """Attaches the hooks; call `hooks.remove` after the step.

        `cursor`: which of the reference's rows this rank has.
        """
        called = {key.partition("#")[0] for key in self.reader.names("inputs", 0)}
        self.silent = modules.silent_parts(wrapped, called)
        self.model, self.cursor = model, cursor
        self.hooks.attach(wrapped, self._before, self._after)

    def _before(
        self, name: str, number: int, module: nn.Module, args: Any, kwargs: Any
    ) -> Any:
        if not self.rng:
            self.rng = zlib.crc32(torch.get_rng_state().numpy().tobytes())
            self.held_rng = external_state.generator_states(self.model)
        if not name and not number:
            self.cursor.enter(args, kwargs, self._recorded)
        found = _Inputs()

        def take(path: str, actual: Tensor) -> Tensor:
            return self._input(key_of(name, number, path or "output"), actual, found)

        args, kwargs = tree.replace((args, kwargs), take)
        before = modules.versions(module, self.silent.get(name, ()))
        self.first_weights.setdefault(name, before[1])
        self.open.append(
            _Call(
                name=name,
                number=number,
                module=module,
                args=args,
                kwargs=kwargs,
                inputs=found,
                before=before,
                collectives=len(self.seen.collectives),
                draws=self.drawn.of_torchs,
            )
        )
        return args, kwargs

    def _input(self, key: str, actual: Tensor, found: _Inputs) -> Tensor:
        """Returns the rank's rows of the reference's input, else `actual`."""
        is_fed = self.feeds_indices or _has_fractions(actual)
        reference = self._recorded("inputs", key, actual) if is_fed else None
        if reference is None or reference.dtype != actual.dtype:
            return actual
        mine = tree.dense(actual)
        rows, diff = closest(mine, reference, self.cursor.rows)
        if rows is None:
            found.is_other |= _is_other(mine, reference)
            return actual
        value = rows(reference)
        if _is_renumbered(mine, value):
            return actual
        found.add(mine, reference, diff, is_first=not self.cursor.rows[0])
        if mine is not actual:  # no other tensor stores the same elements
            found.is_other |= diff > SAME
            return actual
        if not actual.requires_grad:
            return value.clone()
        # The value is the reference's, the autograd graph is the rank's own.
        return actual + (value - actual.detach())

    def _after(self, name: str, _number: int, _module: nn.Module, output: Any) -> Any:
        while self.open[-1].name != name:  # its forward raised, and user code caught it
            self.open.pop()
        call = self.open[-1]
        counterparts = self._counterparts(call.key_of(""), output)

        def take(path: str, actual: Tensor) -> Tensor:
            key = call.key_of(counterparts.get(path, path) or "output")
            reference = self._recorded("outputs", key, actual)
            if reference is None:
                return actual
            if path in counterparts:
                diff = math.inf
                if actual.shape == reference.shape:
                    diff = distance(tree.dense(actual), reference)
                if diff > SAME:
                    call.differs_by(diff)
                return actual
            return self._output(call, key, actual, reference)

        new = tree.replace(output, take)
        keeps = _keeps_shape(call, output)
        self.open.pop()
        self._note(call, keeps=keeps)
        return new

    def _output(
        self, call: _Call, key: str, actual: Tensor, reference: Tensor
    ) -> Tensor:
        """Compares an output; returns what the network goes on with."""
        if actual.shape[1:] != reference.shape[1:]:
            call.rows_first = False
        is_number = not actual.dim()
        rows, diff = closest(tree.dense(actual), reference, self.cursor.rows)
        if rows is None or is_number:
            if _is_term(actual, reference) and (is_number or key not in self.inside):
                both = (t.detach().reshape(-1).tolist() for t in (actual, reference))
                call.numbers.extend(zip(*both, strict=True))
            elif (
                reference.shape == actual.shape
                and not is_number
                and not call.inputs.is_other
            ):
                # No dimension of samples: equal on all ranks, or computed by all.
                call.differs_by(distance(tree.dense(actual), reference))
            return actual
        call.differs_by(0.0 if _is_renumbered(actual, rows(reference)) else diff)
        if not actual.is_floating_point():
            return actual
        if key not in self.cuts and key not in self.data:
            return actual
        given = rows(reference).to(actual.dtype).clone()
        if key in self.data:
            return actual if self.attached else given
        leaf = leaf_of(given)
        self.leaves.append(
            Leaf(
                key=key,
                module=call.name,
                micro=self.hooks.micro,
                tensor=leaf,
                rows=rows,
            )
        )
        return self.attached.through(actual, leaf) if self.attached else leaf.clone()

    def _note(self, call: _Call, *, keeps: bool) -> None:
        """Adds the evidence of a call that has ended.

        `keeps`: the output has the shape of the input.
        """
        name, module, inputs = call.name, call.module, call.inputs
        buffers, weights = modules.versions(module, self.silent.get(name, ()))
        call.writes = buffers != call.before[0]
        draws = self.drawn.of_torchs - call.draws
        if self.open:
            self.open[-1].draws_of_parts += draws
        caller = self.open[-1] if self.open else None
        called = len(self.seen.collectives) - call.collectives
        is_norm = isinstance(module, private.BATCH_NORMS)
        synchronized = is_norm and batch_norm.is_synchronized(module)
        with self.hooks.paused(), self._no_draws():
            invariant, normalises = _as_a_norm(call, called)
            # Not for a module that calls collectives: other ranks may not try it.
            is_right = (bool(call.worst) and not called) and _is_right_with_buffers(
                call, self._recorded, self.cursor.rows
            )
        # Collectives of these tries are not the caller's.
        del self.seen.collectives[call.collectives + called :]
        self.modules.append(
            ModuleCall(
                name=name,
                kind="SyncBatchNorm" if synchronized else type(module).__name__,
                call=call.number,
                rel_diff=call.worst,
                caller=caller.name if caller else "",
                caller_kind=type(caller.module).__name__ if caller else "",
                input_diff=inputs.worst,
                repeats_first=inputs.repeats_first,
                keeps_some_input=inputs.keeps_some,
                remakes_input=f"{name}#{call.number}" in self.hooks.remade,
                rows_first=call.rows_first,
                numbers=tuple(call.numbers),
                keeps_shape=keeps,
                draws=draws > call.draws_of_parts,
                collectives=called,
                writes_buffers=call.writes,
                through_buffers=is_right,
                writes_parameters=weights != call.before[1],
                has_other_weights=call.before[1] != self.first_weights[name],
                scales_by_frequency=bool(getattr(module, "scale_grad_by_freq", False)),
                is_batch_norm=is_norm,
                is_synchronized=synchronized,
                is_scale_invariant=invariant,
                normalises=normalises,
            )
        )

    @contextmanager
    def _no_draws(self) -> Iterator[None]:
        """Random numbers drawn inside do not count, and come from no sample's noise."""
        with self.drawn.aside(), self.noise.aside() if self.noise else nullcontext():
            yield

    def _counterparts(self, prefix: str, output: Any) -> dict[str, str]:
        """Returns the item of the reference's list for each item of the rank's list."""
        if not tree.is_container(output):
            return {}
        mine = [path for path, _ in tree.tensors(output)]
        keys = self.reader.names("outputs", 0)
        theirs = [k.removeprefix(prefix) for k in keys if k.startswith(prefix)]
        return pairing.counterparts(mine, theirs, self.cursor.rows)

    def _recorded(self, quantity: str, key: str, actual: Tensor) -> Tensor | None:
        shape, rows = tuple(actual.shape), self.cursor.rows[1]
        return micro.recorded(self.reader, self.windows, quantity, key, shape, rows)

    def recorded_at(self, quantity: str, leaf: Leaf) -> Tensor | None:
        """Returns the reference's tensor at a cut."""
        shape, rows = tuple(leaf.tensor.shape), self.cursor.rows_in(leaf.micro)
        return micro.recorded(
            self.reader, self.windows, quantity, leaf.key, shape, rows
        )


def _has_fractions(tensor: Tensor) -> bool:
    """Returns whether a tensor has real or complex numbers, not indices or a mask."""
    return tensor.is_floating_point() or tensor.is_complex()


def _is_other(actual: Tensor, reference: Tensor) -> bool:
    """Returns whether an input has the shape of the reference's but other values.

    A module that is called for pieces of a batch (ghost batches, chunks, time steps)
    gets other pieces on a rank: the n-th call is for another piece.
    """
    is_as_large = actual.shape == reference.shape and _has_fractions(actual)
    return is_as_large and distance(actual, reference) > SAME


def _is_renumbered(actual: Tensor, expected: Tensor) -> bool:
    """Returns whether integers differ by one constant, as positions in a batch do.

    A shard numbers its rows, nodes or boxes from its own first one.
    """
    if _has_fractions(actual) or not actual.numel():
        return False
    shift = expected.long() - actual.long()
    return bool((shift == shift.flatten()[0]).all())


def _is_term(actual: Tensor, reference: Tensor) -> bool:
    """Returns whether a tensor may be a term of the loss: one real number or a few."""
    return (
        actual.shape == reference.shape
        and actual.is_floating_point()
        and actual.numel() <= _FEW
    )


def _keeps_shape(call: _Call, output: Any) -> bool:
    """Returns whether the shapes would allow nn.Identity in the module's place."""
    if len(call.args) != 1 or call.kwargs:
        return False
    (given,) = call.args
    if not isinstance(given, Tensor) or not isinstance(output, Tensor):
        return False
    return (given.shape, given.dtype) == (output.shape, output.dtype)


def _is_right_with_buffers(
    call: _Call, recorded: _Recorded, rows: tuple[int, int, int]
) -> bool:
    """Returns whether the reference's buffers make the output equal the reference's.

    The buffers may have been written by the module, or by the training step before.
    """
    kept = {
        name: recorded("kept", call.key_of(name), buffer)
        for name, buffer in contents.own_buffers(call.module)
    }
    if not call.writes and modules.has_buffers(call.module, kept):
        return False
    ways = [modules.evaluated] + ([modules.arriving] if call.writes else [])
    tried = (way(call.module, call.args, call.kwargs, kept) for way in ways)
    return any(o is not None and _are_right(call, o, recorded, rows) for o in tried)


def _are_right(
    call: _Call,
    outputs: list[tuple[str, Tensor]],
    recorded: _Recorded,
    rows: tuple[int, int, int],
) -> bool:
    """Returns whether these outputs equal the reference's; False if none compares."""
    is_compared = False
    for path, tensor in outputs:
        reference = recorded("outputs", call.key_of(path or "output"), tensor)
        if reference is None or not tensor.dim():
            continue
        mine, diff = closest(tree.dense(tensor), reference, rows)
        if mine is None or diff > SAME:
            return False
        is_compared = True
    return is_compared


def _as_a_norm(call: _Call, collectives: int) -> tuple[bool, bool]:
    """Returns whether a module is scale invariant, and whether it normalises.

    Only modules that keep state or call collectives are tried. The slope is tried only
    if the module calls no collective, since each rank tries its own modules.
    """
    given = call.module, call.args, call.kwargs
    is_invariant = bool(call.writes or collectives) and modules.is_scale_invariant(
        *given
    )
    is_known = isinstance(call.module, private.BATCH_NORMS)
    normalises = (is_known or batch_norm.scripts_batch_norm(call.module)) or (
        call.writes
        and not collectives
        and modules.is_norm_like(*given, is_invariant=is_invariant)
    )
    return is_invariant, normalises
