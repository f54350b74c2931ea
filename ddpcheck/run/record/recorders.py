"""Compares the tensors of a run with those that the reference has written."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ddpcheck.compare import comparison as compare
from ddpcheck.compare.digests import digest
from ddpcheck.compare.trace import PART, Reader
from ddpcheck.report.data import Difference, Quantity
from ddpcheck.run.facts import of_trace
from ddpcheck.run.record import flattened, pairing, scales
from ddpcheck.run.record.updates import Sharing, Updates, least_move
from ddpcheck.run.spec import ONE_SIDED, StepResult

# DataParallel sums the gradients of its replicas: zeros where all of them have none.
_UNUSED = (
    "it is unused; DataParallel gives it gradients of zeros, by which the "
    "optimizer changes it (weight decay, momentum)"
)
_LEFT_OUT = "a rank makes fewer updates than the single-process run"


@dataclass(slots=True)
class ComparingRecorder:
    """Compares each group of tensors with the reference's trace as it is recorded.

    `uncomparable` returns the modules whose buffers must not be compared now.
    `rows` is (start, size, total) of the rank's samples, to find its rows of outputs.
    `calls_itself`: the target's own step calls the model, possibly on other rows.
    `zeros_are_none`: a gradient of zeros counts as None where the single-process run
    has None, as DataParallel sums the gradients of unused replicas to zeros. `floors`
    has an rtol for weights and buffers that are not judged by the common one; the
    weights of ranks are then always compared with each other too. `sample_lists`: paths
    of lists among outputs that hold an item per sample.
    """

    reader: Reader
    rtol: float
    rank: int
    rows: tuple[int, int, int]
    uncomparable: Callable[[], set[str]] = set
    zeros_are_none: bool = False
    calls_itself: bool = False
    floors: dict[str, float] = field(default_factory=dict)
    quantities: dict[str, Quantity] = field(default_factory=dict)
    compared: dict[str, frozenset[str]] = field(default_factory=dict)
    digests: dict[str, tuple[float, ...]] = field(default_factory=dict)
    not_compared: dict[str, str] = field(default_factory=dict)
    sample_lists: set[str] = field(default_factory=set)
    sharing: Sharing = field(default_factory=Sharing)
    _updates: Updates = field(init=False)
    _of_zeros: set[str] = field(default_factory=set)
    _least_move: float = 0.0

    def __post_init__(self) -> None:
        self._updates = Updates(self.reader)

    def take(self, quantity: str, step: int, named: dict[str, Tensor | None]) -> None:
        """Compares the group; keeps rows of the table only where it differs."""
        self._note_missing(quantity, step, named)
        places = self._updates.places(quantity, step, named)
        equal = next((p for p in places if self._is_taken_at_once(step, *p)), None)
        quantity, named = equal or places[0]
        self._updates.take(quantity)
        if equal:
            return
        if not named and not self.reader.names(quantity, step):
            self.quantities.setdefault(quantity, Quantity())
            return  # a model without buffers
        references = flattened.group(self.reader, quantity, step)
        of_samples: set[str] = set()
        if quantity == "outputs":
            named, references = self._outputs(named, references)
        elif quantity.startswith("gradients"):
            named, references = self._gradients(named, references)
        elif quantity == "weights" and self._of_zeros:
            named, references = self._moved_by_zeros(step, named, references)
        elif quantity == "buffers":
            skip = self.uncomparable()
            named, references = _without(named, skip), _without(references, skip)
            named = self._known(named, references)
            references, of_samples = self._shares(named, references)
        scale: float | dict[str, float] = self._updates.scale(quantity, step)
        if quantity == "buffers":
            kinds = of_trace(self.reader.index).get("buffers", {})
            scale = scales.of_buffers(references, kinds)
            of_others = self._of_other_samples(of_samples, named, references, scale)
            named, references = (
                _without_names(named, of_others),
                _without_names(references, of_others),
            )
        result = self._compare(quantity, step, named, references, scale)
        self._add(quantity, result, _present(named, references))
        strict = quantity == "weights" and bool(self.floors)
        if (result.mismatched and quantity != "outputs") or strict:
            values = digest(_without_names(named, of_samples))
            name = quantity.partition("@")[0]
            self.digests[name] = self.digests.get(name, ()) + values
        gradients = self.quantities.get("gradients")
        if quantity == "weights" and gradients and gradients.mismatched:
            moved = 0.0 if result.mismatched else least_move(self.reader, step)
            self._least_move = moved
            self.sharing.end(named)
        self.reader.release(above=PART)

    def _is_plain(self, quantity: str) -> bool:
        """Returns whether a group is compared unchanged, all of it by one tolerance."""
        if quantity == "weights":
            return not (self._of_zeros or self.floors)
        if quantity == "outputs":
            return True  # the rank's rows of them
        return quantity.startswith("gradients") and not self.zeros_are_none

    def _is_taken_at_once(
        self, step: int, quantity: str, named: dict[str, Tensor | None]
    ) -> bool:
        """Compares a flattened group; returns whether it is within tolerance."""
        if not self._is_plain(quantity):
            return False
        earlier = self.quantities.get("gradients")
        if earlier and earlier.mismatched:
            return False
        scale = self._updates.scale(quantity, step)
        references = flattened.cached(
            self.reader,
            (quantity, step, self.rows, tuple(named)),
            lambda: self._like(quantity, step, named),
            scale,
        )
        worst = references.worst(named, self.rtol) if references is not None else None
        if worst is None:
            return False
        result = self._within(len(named), step, worst, scale)
        self._add(quantity, result, frozenset(named))
        return True

    def _like(
        self, quantity: str, step: int, named: dict[str, Tensor | None]
    ) -> dict[str, Tensor | None]:
        """Returns the references of a group; of outputs, the rank's rows."""
        whole = flattened.group(self.reader, quantity, step)
        if quantity != "outputs":
            return {
                n: t for n, t in whole.items() if n in named or quantity == "weights"
            }
        return {
            name: pairing.rows_of(reference, tuple(tensor.shape), self.rows)
            for name, reference in whole.items()
            if reference is not None and (tensor := named.get(name)) is not None
        }

    def _within(
        self, compared: int, step: int, worst: tuple[float, str], scale: float
    ) -> Quantity:
        """Returns the result of a group within tolerance, from its largest excess."""
        excess, name = worst
        row = Difference(
            name=name,
            step=step,
            rank=self.rank,
            abs_diff=excess * self.rtol * scale,
            rel_diff=excess * self.rtol,
            excess=excess,
        )
        return Quantity(compared=compared, worst=row, excess_by_step=(excess,))

    def _add(self, quantity: str, result: Quantity, compared: frozenset[str]) -> None:
        """Adds the result of a group to the step; all updates of a step are summed."""
        name = quantity.partition("@")[0]
        self.compared[name] = self.compared.get(name, frozenset()) | compared
        earlier = self.quantities.get(name)
        self.quantities[name] = _add(earlier, result) if earlier else result
        if name == "gradients":
            self.sharing.is_wrong = bool(result.mismatched)

    def _gradients(
        self, named: dict[str, Tensor | None], references: dict[str, Tensor | None]
    ) -> tuple[dict[str, Tensor | None], dict[str, Tensor | None]]:
        """Returns the gradients that an update uses; weights judge the others."""
        if self.zeros_are_none:
            zeros = {n for n, t in named.items() if _stands_for_none(t, references, n)}
            named = {n: None if n in zeros else t for n, t in named.items()}
            self._of_zeros |= {n.partition("@")[0] for n in zeros}
        return named, {n: t for n, t in references.items() if n in named}

    def _moved_by_zeros(
        self,
        step: int,
        named: dict[str, Tensor | None],
        references: dict[str, Tensor | None],
    ) -> tuple[dict[str, Tensor | None], dict[str, Tensor | None]]:
        """Leaves out weights that change only because their gradient is zeros."""
        moved = {
            n
            for n in self._of_zeros & named.keys() - self._used()
            if (t := named[n]) is not None
            and self.reader.differs("weights", step, n, t)
        }
        for name in moved:
            self.not_compared[f"weights of {name}"] = _UNUSED
        return _without_names(named, moved), _without_names(references, moved)

    def _used(self) -> set[str]:
        """Returns the parameters with a gradient in some single-process step."""
        return {
            name.partition("@")[0]
            for (quantity, _), group in self.reader.index.groups.items()
            if quantity.startswith("gradients")
            for name, entry in group.items()
            if entry is not None
        }

    def finish(self, step: int, loss: float | None) -> StepResult:
        """Returns and resets the results since the last call."""
        for quantity in self._updates.left_out(step):
            number = int(quantity.partition("@")[2] or 0) + 1
            what = f"gradients of update {number} within a step"
            self.not_compared.setdefault(what, _LEFT_OUT)
        parted, reduces = self.sharing.finish()
        result = StepResult(
            step=step,
            loss=loss,
            quantities=self.quantities,
            compared=self.compared,
            digests=self.digests,
            least_move=self._least_move,
            parted=parted,
            reduces_in_update=reduces,
        )
        self._least_move = 0.0
        self.quantities, self.compared, self.digests = {}, {}, {}
        return result

    def _compare(
        self,
        quantity: str,
        step: int,
        named: dict[str, Tensor | None],
        references: dict[str, Tensor | None],
        scale: float | dict[str, float],
    ) -> Quantity:
        """Compares in parts, to keep the mapped memory of the trace small."""
        parts = _parts(references)
        if len(parts) == 1:
            return self._compare_part(quantity, step, named, references, scale)
        extra = {n: t for n, t in named.items() if n not in references}
        found = []
        for names in parts:
            mine = {n: named[n] for n in names if n in named} | extra
            theirs = {n: references[n] for n in names}
            found.append(self._compare_part(quantity, step, mine, theirs, scale))
            self.reader.release()
            extra = {}
        return functools.reduce(_add, found)

    def _compare_part(
        self,
        quantity: str,
        step: int,
        named: dict[str, Tensor | None],
        references: dict[str, Tensor | None],
        scale: float | dict[str, float],
    ) -> Quantity:
        if self.floors and quantity in ("weights", "buffers"):
            return self._by_own_floors(step, named, references, scale)
        equal, worst, name = False, 0.0, ""
        if not isinstance(scale, dict):
            equal, worst, name = compare.is_equal(
                named, references, rtol=self.rtol, scale=scale
            )
        if isinstance(scale, dict) or not equal:
            return compare.compare_group(
                named,
                references,
                rtol=self.rtol,
                scale=scale,
                step=step,
                rank=self.rank,
            )
        compared = sum(t is not None for t in references.values())
        if not compared:
            return Quantity()
        return self._within(compared, step, (worst, name), scale)

    def _by_own_floors(
        self,
        step: int,
        named: dict[str, Tensor | None],
        references: dict[str, Tensor | None],
        scale: float | dict[str, float],
    ) -> Quantity:
        parts = [
            compare.compare_group(
                {n: t for n, t in named.items() if self.floors.get(n) == rtol},
                {n: t for n, t in references.items() if self.floors.get(n) == rtol},
                rtol=self.rtol if rtol is None else rtol,
                scale=scale,
                step=step,
                rank=self.rank,
            )
            for rtol in {None, *self.floors.values()}
        ]
        return functools.reduce(_add, parts)

    def _known(
        self, named: dict[str, Tensor | None], references: dict[str, Tensor | None]
    ) -> dict[str, Tensor | None]:
        """Returns the buffers that the reference has too; notes the others."""
        for name in [n for n in named if n not in references]:
            reason = "the single-process model has no such buffer"
            self.not_compared[f"buffer {name}"] = reason
        return {n: t for n, t in named.items() if n in references}

    def _shares(
        self, named: dict[str, Tensor | None], references: dict[str, Tensor | None]
    ) -> tuple[dict[str, Tensor | None], set[str]]:
        """Returns the references, cut to the rank's rows where a buffer holds samples.

        The hidden state of a recurrent net has a row per sample; a rank has its own.
        """
        cut, names = dict(references), set()
        for name, tensor in named.items():
            whole = references[name]
            if tensor is None or whole is None or tensor.shape == whole.shape:
                continue
            part = pairing.rows_of(whole, tuple(tensor.shape), self.rows)
            if part is not None:
                cut[name] = part
                names.add(name)
        return cut, names

    def _of_other_samples(
        self,
        of_samples: set[str],
        named: dict[str, Tensor | None],
        references: dict[str, Tensor | None],
        scale: dict[str, float],
    ) -> set[str]:
        """Returns and notes the buffers whose rows are not the rank's samples.

        A step may call the model on micro-batches or views, so the samples of the last
        call are unknown. If the buffer matters, gradients differ.
        """
        found = set()
        for name in of_samples if self.calls_itself else ():
            same, _, _ = compare.is_equal(
                {name: named[name]},
                {name: references[name]},
                rtol=self.rtol,
                scale=scale.get(name, 0.0),
            )
            if not same:
                self.not_compared[f"buffer {name}"] = (
                    "it holds other samples than the rank's shard"
                )
                found.add(name)
        return found

    def _note_missing(
        self, quantity: str, step: int, named: dict[str, Tensor | None]
    ) -> None:
        if quantity == "outputs":
            every = self.reader.names(quantity, step)
            lacking = pairing.missing(named, every, self.rows)
            self._leave_out(dict.fromkeys(lacking, ONE_SIDED))

    def _outputs(
        self, named: dict[str, Tensor | None], references: dict[str, Tensor | None]
    ) -> tuple[dict[str, Tensor | None], dict[str, Tensor | None]]:
        self.sample_lists |= pairing.of_samples(named, references, self.rows)
        mine, theirs, left_out = pairing.paired(named, references, self.rows)
        self._leave_out(left_out)
        return mine, theirs

    def _leave_out(self, found: dict[str, str]) -> None:
        self.not_compared |= {f"output {name}": why for name, why in found.items()}


def _stands_for_none(
    gradient: Tensor | None, references: dict[str, Tensor | None], name: str
) -> bool:
    """Returns whether a gradient is zeros where the reference has None."""
    is_none = references.get(name) is None
    return is_none and gradient is not None and not bool(gradient.any())


def _without(
    named: dict[str, Tensor | None], modules: set[str]
) -> dict[str, Tensor | None]:
    return {n: t for n, t in named.items() if n.rpartition(".")[0] not in modules}


def _without_names(
    named: dict[str, Tensor | None], names: set[str]
) -> dict[str, Tensor | None]:
    return {n: t for n, t in named.items() if n not in names}


def _parts(references: dict[str, Tensor | None]) -> list[list[str]]:
    """Returns the names split into parts of at most PART bytes, or one tensor."""
    _parts: list[list[str]] = [[]]
    size = 0
    for name, tensor in references.items():
        needed = tensor.numel() * tensor.element_size() if tensor is not None else 0
        if _parts[-1] and size + needed > PART:
            _parts.append([])
            size = 0
        _parts[-1].append(name)
        size += needed
    return _parts


def _present(*sides: Mapping[str, Tensor | None]) -> frozenset[str]:
    """Returns the names with a tensor on any side: those that are compared."""
    return frozenset(n for side in sides for n, t in side.items() if t is not None)


def _add(first: Quantity, second: Quantity) -> Quantity:
    """Returns the results of two groups of a step as one."""
    rows = sorted(first.tensors + second.tensors, key=lambda r: -r.excess)
    candidates = [q.worst for q in (first, second) if q.worst]
    worst = max(candidates, key=lambda r: r.excess) if candidates else None
    return Quantity(
        compared=first.compared + second.compared,
        mismatched=first.mismatched + second.mismatched,
        worst=worst,
        tensors=tuple(rows),
        excess_by_step=(worst.excess,) if worst else (),
    )
