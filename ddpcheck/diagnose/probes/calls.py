"""The calls of modules in a rank: given the reference's inputs, and compared."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
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

# (quantity, key, the rank's own) -> the reference's
_Recorded = Callable[[str, str, Tensor], Tensor | None]
_FEW = 64  # numbers: a loss per quantizer, not statistics per channel


@dataclass(slots=True)
class _Inputs:
    """What a module is called with, compared with the reference's inputs.

    `worst` is relative; see ModuleCall for the others. `is_other`: some input is no
    rows of what the single-process run called it with, and could not be replaced.
    """

    worst: float = 0.0
    is_other: bool = False
    repeats_first: bool = False
    keeps_some: bool = False

    def add(
        self, actual: Tensor, reference: Tensor, diff: float, *, is_first: bool
    ) -> None:
        """Takes a tensor, the reference's of all samples, and the relative difference.

        `is_first`: the rank's rows are the first ones.
        """
        repeats = actual.shape[1:] == reference.shape[1:] and torch.equal(
            actual, reference[: len(actual)]
        )
        self.worst = max(self.worst, diff)
        if diff > SAME:
            self.repeats_first |= repeats
        elif is_first or not repeats:  # else all samples have the same
            self.keeps_some = True


class Calls:
    """What the calls of one step show; the cuts that they leave behind.

    `feeds_indices`: whole numbers that modules are called with are the reference's too.

    Args:
        reader: of the reference's trace.
        seen: what user code does meanwhile.
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
        self.inputs: dict[str, _Inputs] = {}
        self.before: dict[str, tuple[int, list[tuple[int, float]], list[float]]] = {}
        self.first_weights: dict[str, list[float]] = {}  # at the first call, by module
        self.calls: dict[str, Any] = {}
        self.callers: dict[str, tuple[str, str]] = {}
        self.open: list[tuple[str, str]] = []
        self.drawn = DrawCounter()  # of the step
        self.noise: SampleNoise | None = None
        self.draws: list[list[int]] = []  # of open calls: draws before, draws of parts
        self.silent: dict[str, list[nn.Module]] = {}
        self.feeds_indices = True
        self.rng = 0  # of the state of torch's generator when the forward begins
        self.held_rng = 0  # of the states of numpy's and Python's that the target holds
        self.rows_first = True  # of the module call that ended last

    def watch(self, wrapped: nn.Module, model: nn.Module, cursor: micro.Cursor) -> None:
        """Attaches the hooks; remove `hooks` after the step.

        Args:
            wrapped: what is called.
            model: inside it.
            cursor: which of the reference's rows this rank has.
        """
        called = {key.partition("#")[0] for key in self.reader.names("inputs", 0)}
        self.silent = modules.silent_parts(wrapped, called)
        self.model, self.cursor = model, cursor
        self.hooks.attach(wrapped, self._before, self._after)

    def _before(
        self, name: str, call: int, module: nn.Module, args: Any, kwargs: Any
    ) -> Any:
        if not self.rng:
            self.rng = zlib.crc32(torch.get_rng_state().numpy().tobytes())
            self.held_rng = external_state.generator_states(self.model)
        if not name and not call:
            self.cursor.enter(args, kwargs, self._recorded)
        found = _Inputs()

        def take(path: str, actual: Tensor) -> Tensor:
            if not (self.feeds_indices or has_fractions(actual)):
                return actual
            key = key_of(name, call, path or "output")
            reference = self._recorded("inputs", key, actual)
            if reference is None or reference.dtype != actual.dtype:
                return actual
            rows, diff = closest(actual, reference, self.cursor.rows)
            if rows is None:
                found.is_other |= _is_another(actual, reference)
                return actual
            value = rows(reference)
            if is_renumbered(actual, value):
                return actual
            found.add(actual, reference, diff, is_first=not self.cursor.rows[0])
            if not actual.requires_grad:
                return value.clone()
            # The value is the reference's, the graph stays the rank's own.
            return actual + (value - actual.detach())

        new = tree.replace((args, kwargs), take)
        key = f"{name}#{call}"
        self.inputs[key] = found
        told = modules.versions(module, self.silent.get(name, ()))
        self.before[key] = (len(self.seen.collectives), *told)
        self.first_weights.setdefault(name, told[1])
        self.calls[key] = new
        self.callers[key] = self.open[-1] if self.open else ("", "")
        self.open.append((name, type(module).__name__))
        self.draws.append([self.drawn.of_torchs, 0])
        return new

    def _after(self, name: str, call: int, module: nn.Module, output: Any) -> Any:
        worst: float | None = None
        numbers: list[tuple[float, float]] = []
        self.rows_first = True
        others = self._counterparts(key_of(name, call, ""), output)
        is_fed = not self.inputs[f"{name}#{call}"].is_other

        def take(path: str, actual: Tensor) -> Tensor:
            nonlocal worst
            key = key_of(name, call, others.get(path, path) or "output")
            reference = self._recorded("outputs", key, actual)
            if reference is None:
                return actual
            if path in others:
                diff = _as_one_sample(actual, reference)
                worst = worst if diff <= SAME else max(worst or 0.0, diff)
                return actual
            if actual.shape[1:] != reference.shape[1:]:
                self.rows_first = False
            is_number = not actual.dim()
            rows, diff = closest(actual, reference, self.cursor.rows)
            if rows is None or is_number:
                if is_term(actual, reference) and (is_number or key not in self.inside):
                    numbers.extend(pairs(actual, reference))
                elif reference.shape == actual.shape and not is_number and is_fed:
                    # No samples in it: the same on every rank or a shared quantity.
                    worst = max(worst or 0.0, distance(actual, reference))
                return actual
            if is_renumbered(actual, rows(reference)):
                diff = 0.0
            worst = max(worst or 0.0, diff)
            if not actual.is_floating_point():
                return actual
            return self._given(name, key, actual, reference, rows)

        new = tree.replace(output, take)
        keeps = keeps_shape(self.calls[f"{name}#{call}"], output)
        self._note(name, call, module, worst, numbers=tuple(numbers), keeps=keeps)
        return new

    def _given(
        self,
        name: str,
        key: str,
        actual: Tensor,
        reference: Tensor,
        rows: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """Returns the rank's rows of the reference at a cut, else `actual`."""
        if key not in self.cuts and key not in self.data:
            return actual
        given = rows(reference).to(actual.dtype).clone()
        if key in self.data:
            return actual if self.attached else given
        leaf = leaf_of(given)
        number = self.hooks.micro
        self.leaves.append(
            Leaf(key=key, module=name, micro=number, tensor=leaf, rows=rows)
        )
        return self.attached.through(actual, leaf) if self.attached else leaf.clone()

    def _note(
        self,
        name: str,
        call: int,
        module: nn.Module,
        rel_diff: float | None,
        *,
        numbers: tuple[tuple[float, float], ...],
        keeps: bool,
    ) -> None:
        key = f"{name}#{call}"
        inputs = self.inputs[key]
        collectives, buffers, parameters = self.before[key]
        args, kwargs = self.calls.pop(key)
        self.open.pop()
        caller, caller_kind = self.callers.pop(key)
        draws = self._draws_itself()
        now = modules.versions(module, self.silent.get(name, ()))
        writes = now[0] != buffers
        called = len(self.seen.collectives) - collectives
        is_norm = isinstance(module, private.BATCH_NORMS)
        synchronized = is_norm and batch_norm.is_synchronized(module)
        this = _Call(key, module, args, kwargs, writes=writes)
        with self.hooks.paused(), self._no_draws():
            invariant, normalises = _as_a_norm(this, called)
            # Not where it calls others, who may not ask: they are right.
            is_right = (bool(rel_diff) and not called) and _is_right_with_buffers(
                this, self._recorded, self.cursor.rows
            )
        # Those that were called only to see what it does are not its caller's.
        del self.seen.collectives[collectives + called :]
        self.modules.append(
            ModuleCall(
                name=name,
                kind="SyncBatchNorm" if synchronized else type(module).__name__,
                call=call,
                rel_diff=rel_diff,
                caller=caller,
                caller_kind=caller_kind,
                input_diff=inputs.worst,
                repeats_first=inputs.repeats_first,
                keeps_some_input=inputs.keeps_some,
                remakes_input=key in self.hooks.remade,
                rows_first=self.rows_first,
                numbers=numbers,
                keeps_shape=keeps,
                draws=draws,
                collectives=called,
                writes_buffers=writes,
                through_buffers=is_right,
                writes_parameters=now[1] != parameters,
                has_other_weights=parameters != self.first_weights[name],
                scales_by_frequency=bool(getattr(module, "scale_grad_by_freq", False)),
                is_batch_norm=is_norm,
                is_synchronized=synchronized,
                is_scale_invariant=invariant,
                normalises=normalises,
            )
        )

    def _draws_itself(self) -> bool:
        """Returns whether the call that ends drew more than its parts did."""
        before, of_parts = self.draws.pop()
        every = self.drawn.of_torchs - before
        if self.draws:
            self.draws[-1][1] += every
        return every > of_parts

    @contextmanager
    def _no_draws(self) -> Iterator[None]:
        """Lets calls that only show what a module does draw for nobody."""
        with self.drawn.aside(), self.noise.aside() if self.noise else nullcontext():
            yield

    def _counterparts(self, prefix: str, output: Any) -> dict[str, str]:
        """Returns which item of the reference's list an item of the rank's list is."""
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
        """Returns what the reference had at a cut."""
        shape, rows = tuple(leaf.tensor.shape), self.cursor.rows_in(leaf.micro)
        return micro.recorded(
            self.reader, self.windows, quantity, leaf.key, shape, rows
        )


def _is_another(actual: Tensor, reference: Tensor) -> bool:
    """Returns whether a call's input is as large as the reference's, and another one.

    A module that is called for pieces of a batch (ghosts, chunks, time steps) gets
    other pieces on a rank: call number n is another piece.
    """
    is_as_large = actual.shape == reference.shape and has_fractions(actual)
    return is_as_large and distance(actual, reference) > SAME


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a module: "NAME#NUMBER", and whether it has written buffers."""

    key: str
    module: nn.Module
    args: Any
    kwargs: Any
    writes: bool

    def key_of(self, path: str) -> str:
        """Returns the key of one of its tensors."""
        name, _, number = self.key.rpartition("#")
        return key_of(name, int(number), path)


def _is_right_with_buffers(
    call: _Call, recorded: _Recorded, rows: tuple[int, int, int]
) -> bool:
    """Returns whether it returns the reference's rows with the reference's buffers.

    The module may have written them itself, or the training step before it.

    Args:
        call: of a module that differs.
        recorded: gives what the single-process run had.
        rows: (first, number, of all) of the rank's samples.
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
    judged = False
    for path, tensor in outputs:
        reference = recorded("outputs", call.key_of(path or "output"), tensor)
        if reference is None or not tensor.dim():
            continue
        mine, diff = closest(tensor, reference, rows)
        if mine is None or diff > SAME:
            return False
        judged = True
    return judged


def _as_a_norm(call: _Call, collectives: int) -> tuple[bool, bool]:
    """Returns whether a module is scale invariant, and whether it normalises.

    Only for modules that keep state or communicate; the slope only if it needs no
    collective, as each is judged.
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


def _as_one_sample(actual: Tensor, reference: Tensor) -> float:
    """Returns how far a sample is from one process's, infinite for another shape."""
    return distance(actual, reference) if actual.shape == reference.shape else math.inf


def keeps_shape(call: tuple[Any, Any], output: Any) -> bool:
    """Returns whether nn.Identity could stand in for the module, as far as shapes go.

    Args:
        call: the arguments and keyword arguments of the module.
        output: what it returned.
    """
    args, kwargs = call
    if len(args) != 1 or kwargs:
        return False
    if not isinstance(args[0], Tensor) or not isinstance(output, Tensor):
        return False
    return (args[0].shape, args[0].dtype) == (output.shape, output.dtype)


def is_renumbered(actual: Tensor, expected: Tensor) -> bool:
    """Returns whether integers differ by one constant: positions, counted from 0 here.

    A shard numbers its rows, nodes or boxes from its own first one.
    """
    if actual.is_floating_point() or actual.is_complex() or not actual.numel():
        return False
    shift = expected.long() - actual.long()
    return bool((shift == shift.flatten()[0]).all())


def has_fractions(tensor: Tensor) -> bool:
    """Returns whether it holds real or complex numbers, no indices or masks."""
    return tensor.is_floating_point() or tensor.is_complex()


def is_term(actual: Tensor, reference: Tensor) -> bool:
    """Returns whether it can be a term of the loss: a real number, or a few of them."""
    return (
        actual.shape == reference.shape
        and actual.is_floating_point()
        and actual.numel() <= _FEW
    )


def pairs(actual: Tensor, reference: Tensor) -> list[tuple[float, float]]:
    """Returns the numbers of both, one by one."""
    mine, theirs = (t.detach().reshape(-1).tolist() for t in (actual, reference))
    return list(zip(mine, theirs, strict=True))
