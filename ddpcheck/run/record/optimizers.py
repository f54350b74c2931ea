"""The state of optimizers: the single-process run writes it, a rank compares it.

For example moments, step counters, bases of a subspace: the state of each parameter
before the first update and after each update. It does not decide the verdict: state
that matters moves weights, and these are judged. It explains why a run differs.

State that one side lacks is not a difference. Ranks may keep the state of their own
share of the parameters; state may be allocated earlier, as zeros. Of large tensors only
some evenly spaced elements are compared, to keep traces small.

`HeldOtherwise`: the tensors that optimizers update, those of the model and those on
which the loss depends should be the same.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ddpcheck.compare.trace import Reader, Writer, max_abs
from ddpcheck.run.facts import HeldOtherwise, Layout, Parts, StateFacts, of_trace
from ddpcheck.run.model import contents
from ddpcheck.run.model.averaged import leaves
from ddpcheck.run.model.names import Names
from ddpcheck.run.model.whole import whole
from ddpcheck.run.spec import StateApart

_QUANTITY = "state"
_MOST = 128  # elements of a tensor that are compared
_MOST_NAMES = 8  # of parameters, for the report
Numbers = dict[str, dict[str, Tensor]]  # by key and by parameter


@dataclass(slots=True)
class Notes:
    """Follows the updates of every optimizer: the first, second, ... to update."""

    model: nn.Module
    names: Names
    kinds: list[str] = field(default_factory=list)  # the class of each optimizer
    held: list[tuple[str, ...]] = field(default_factory=list)  # parameters of each
    outside: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    # By identity: what optimizers hold, and on what a loss of the first step depends;
    # of that, what has the shape of a parameter and is none of the model's.
    _tensors: dict[int, tuple[str, Tensor]] = field(default_factory=dict)
    _read: dict[int, Tensor] = field(default_factory=dict)
    _loose: dict[int, Tensor] = field(default_factory=dict)
    _known: list[Any] = field(default_factory=list)
    _updates: list[int] = field(default_factory=list)
    _depth: int = 0  # an optimizer may hand on to another

    def begins(self, optimizer: Any, named: Mapping[str, Tensor], step: int) -> None:
        """Notes that an optimizer begins to update these parameters."""
        if not any(optimizer is known for known in self._known):
            self._known.append(optimizer)
            self._updates.append(0)
            self._note_held(optimizer, named)
            self.take(len(self._known) - 1, 0, step, numbers(optimizer, named))
        self._depth += 1

    def ends(self, optimizer: Any, named: Mapping[str, Tensor], step: int) -> None:
        """Notes that it has updated them."""
        self._depth -= 1
        which = next(i for i, known in enumerate(self._known) if known is optimizer)
        self._updates[which] += 1
        self.take(which, self._updates[which], step, numbers(optimizer, named))

    def reads(self, roots: Any, step: int) -> None:
        """Notes on which tensors a loss depends that a backward begins with."""
        given = roots if isinstance(roots, list | tuple) else [roots]
        if step:
            return  # the first step shows it
        found = leaves(root for root in given if isinstance(root, Tensor))
        parameters = list(contents.parameters(self.model))
        inside, shapes = set(map(id, parameters)), {p.shape for p in parameters}
        self._loose |= {
            key: leaf
            for key, leaf in found.items()
            if key not in inside and leaf.requires_grad and leaf.shape in shapes
        }
        self._read |= found

    def take(self, which: int, update: int, step: int, found: Numbers) -> None:
        """Takes the state of an optimizer after so many updates."""

    def _note_held(self, optimizer: Any, named: Mapping[str, Tensor]) -> None:
        inside = set(map(id, contents.parameters(self.model)))
        if not self._depth:
            before = {name for held in self.held for name in held}
            self.twice += [name for name in named if name in before]
        self.kinds.append(type(optimizer).__name__)
        self.held.append(tuple(named))
        known = {n: self.names.of(tensor) or n for n, tensor in named.items()}
        self._tensors |= {id(tensor): (known[n], tensor) for n, tensor in named.items()}
        self.outside += [
            known[name] for name, tensor in named.items() if id(tensor) not in inside
        ]

    def otherwise(self) -> HeldOtherwise:
        """Returns which tensors of model, optimizers and loss are not the same."""
        updated = {name for held in self.held for name in held}
        trained = self.names.parameters(self.model)
        left_out = [n for n, p in trained.items() if p.requires_grad]
        loose = [t for key, t in self._loose.items() if key not in self._tensors]
        unread = [n for key, (n, _) in self._tensors.items() if key not in self._read]
        return HeldOtherwise(
            outside=tuple(self.outside),
            left_out=tuple(n for n in left_out if n not in updated),
            twice=tuple(self.twice),
            elsewhere=tuple(f"a tensor of shape {tuple(t.shape)}" for t in loose),
            unread=tuple(unread) if self._read else (),
        )


@dataclass(slots=True)
class WrittenStates(Notes):
    """Writes the states of the single-process run to its trace."""

    writer: Writer = field(kw_only=True)
    layouts: dict[tuple[int, int], Layout] = field(default_factory=dict)

    def take(self, which: int, update: int, step: int, found: Numbers) -> None:  # noqa: ARG002
        """Appends a state to the trace."""
        self.layouts[which, update] = _layout(found)
        flat = {key: joined(of.values()) for key, of in found.items()}
        if flat:
            self.writer.add(f"{_QUANTITY}@{which}", update, flat.items())

    def facts(self) -> StateFacts:
        """Returns the facts with which ranks compare their state."""
        return {
            "states": self.layouts,
            "held": self.held,
            "held_otherwise": self.otherwise(),
        }


@dataclass(slots=True)
class ComparedStates(Notes):
    """Compares the states of a rank with those in the trace.

    `apart` holds a key of the state from the first moment at which it differs.
    """

    reader: Reader = field(kw_only=True)
    rtol: float = field(kw_only=True)
    apart: dict[tuple[int, str], StateApart] = field(default_factory=dict)

    def take(self, which: int, update: int, step: int, found: Numbers) -> None:
        """Compares a state."""
        layout = of_trace(self.reader.index)["states"].get((which, update))
        if layout is None or not (layout or found):
            return  # the single-process run makes fewer updates; or there is no state
        for key in dict.fromkeys((*layout, *found)):
            if (which, key) in self.apart:
                continue
            parts, mine = layout.get(key, ()), found.get(key, {})
            flat = self.reader.find(f"{_QUANTITY}@{which}", update, key)
            if self._is_same(parts, flat, mine):
                continue
            compared = self._compared(which, _split(flat, parts), mine)
            if compared is not None:
                self.apart[which, key] = dataclasses.replace(
                    compared,
                    optimizer=self.kinds[which],
                    key=key,
                    update=update,
                    step=step,
                )

    def unlike(self) -> HeldOtherwise | None:
        """Returns which tensors are not the same, beyond those of one process."""
        mine = self.otherwise().beyond(of_trace(self.reader.index)["held_otherwise"])
        return None if mine == HeldOtherwise() else mine

    def _is_same(
        self, parts: Parts, flat: Tensor | None, mine: dict[str, Tensor]
    ) -> bool:
        """Returns whether a state is of the same parts and within tolerance: usual."""
        if flat is None or parts != _parts(mine):
            return False
        return max_abs(joined(mine.values()) - flat) <= self.rtol * max_abs(flat)

    def _compared(
        self, which: int, one: dict[str, Tensor], mine: dict[str, Tensor]
    ) -> StateApart | None:
        both = [n for n in one if n in mine and len(one[n]) == len(mine[n])]
        if both:
            ours = joined(mine[name] for name in both).nan_to_num_()
            theirs = joined(one[name] for name in both).nan_to_num()
            scale = max(max_abs(theirs), max_abs(ours))
            if max_abs(ours - theirs) > self.rtol * scale:
                sizes = [len(one[name]) for name in both]
                pairs = zip(ours.split(sizes), theirs.split(sizes), strict=True)
                return _differing(dict(zip(both, pairs, strict=True)), scale)
        alone = _alone(one, mine, self.held[which])
        if alone:
            number = _number(one, alone)
            return _one_sided(alone, "single-process run", mine=None, one=number)
        alone = _alone(mine, one, of_trace(self.reader.index)["held"][which])
        number = _number(mine, alone)
        return _one_sided(alone, "rank", mine=number, one=None) if alone else None


def numbers(optimizer: Any, named: Mapping[str, Tensor]) -> Numbers:
    """Returns what an optimizer keeps for these parameters, by key and by parameter."""
    found: Numbers = {}
    state = getattr(optimizer, "state", None)
    if not isinstance(state, Mapping) or not state:
        return found
    for name, parameter in named.items():
        kept = state.get(parameter)
        if not isinstance(kept, Mapping):
            continue
        for key, value in kept.items():
            flat = elements(value)
            if flat is not None:
                found.setdefault(str(key), {})[name] = flat
    return found


def elements(value: Any) -> Tensor | None:
    """Returns some elements of a tensor, or a number, None for anything else."""
    if isinstance(value, int | float):
        return torch.tensor([float(value)], dtype=torch.float64, device="cpu")
    if isinstance(value, Tensor):
        value = whole(value)
    if type(value) not in (Tensor, nn.Parameter) or not value.numel():
        return None
    if value.layout != torch.strided or value.is_complex() or value.is_meta:
        return None
    flat: Tensor = value.detach().reshape(-1)
    if len(flat) > _MOST:
        flat = flat[:: math.ceil(len(flat) / _MOST)]
    return flat


def joined(parts: Iterable[Tensor]) -> Tensor:
    """Returns the elements of all parts, as float64 on the CPU."""
    flats = list(parts)
    if len({(flat.device, flat.dtype) for flat in flats}) > 1:
        flats = [flat.to("cpu", torch.float64) for flat in flats]
    return torch.cat(flats).to("cpu", torch.float64)


def _layout(found: Numbers) -> Layout:
    return {key: _parts(of) for key, of in found.items()}


def _parts(state: Mapping[str, Tensor]) -> Parts:
    return tuple((name, len(flat)) for name, flat in state.items())


def _split(flat: Tensor | None, parts: Parts) -> dict[str, Tensor]:
    """Returns the single-process state of a key by parameter; {} if there is none."""
    if flat is None:
        return {}
    sizes = [size for _, size in parts]
    return dict(zip((name for name, _ in parts), flat.split(sizes), strict=True))


def _alone(
    one: Mapping[str, Tensor], other: Mapping[str, Tensor], held: tuple[str, ...]
) -> list[str]:
    """Returns the parameters with a state that the other side holds and keeps none of.

    A state of zeros is one that no update has written yet.
    """
    return [
        name
        for name, flat in one.items()
        if name not in other and name in held and bool(flat.any())
    ]


def _differing(pairs: Mapping[str, tuple[Tensor, Tensor]], scale: float) -> StateApart:
    far = {name: max_abs(mine - one) / scale for name, (mine, one) in pairs.items()}
    worst = max(far, key=lambda name: far[name])
    mine, one = pairs[worst]
    is_number = all(len(a) == 1 for pair in pairs.values() for a in pair)
    names = [n for n in sorted(far, key=lambda n: -far[n]) if far[n] > 0]
    return StateApart(
        names=tuple(names[:_MOST_NAMES]),
        count=len(names),
        rel_diff=far[worst],
        mine=float(mine) if is_number else None,
        one=float(one) if is_number else None,
    )


def _number(state: Mapping[str, Tensor], names: list[str]) -> float | None:
    """Returns the number kept for the first of the parameters, None for several."""
    found = [state[name] for name in names[:1] if len(state[name]) == 1]
    return float(found[0]) if found else None


def _one_sided(
    names: list[str], side: str, *, mine: float | None, one: float | None
) -> StateApart:
    return StateApart(
        names=tuple(names[:_MOST_NAMES]),
        count=len(names),
        rel_diff=math.inf,
        mine=mine,
        one=one,
        only_on=side,
    )
