"""What tells that ranks share their weights, and not the gradients, after an update.

Equal weights alone do not: an optimizer that only looks at signs, or divides by the
size of what it gets, hides gradients that are wrong. Ranks that share weights part when
the optimizer steps, and something else than the optimizer writes the weights then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ddpcheck.compare import summing
from ddpcheck.compare.trace import Reader
from ddpcheck.run.spec import Digest


@dataclass(slots=True)
class Sharing:
    """What a step shows of it. `is_wrong`: the gradients that were recorded last."""

    is_wrong: bool = False
    _after: dict[tuple[str, ...], Digest] = field(default_factory=dict)
    _reductions: list[bool] = field(default_factory=list)
    _ended: list[tuple[Digest, Digest]] = field(default_factory=list)

    def updated(self, held: Mapping[str, Tensor], *, reduces: bool) -> None:
        """Notes the weights that an optimizer has just moved, by wrong gradients."""
        if not self.is_wrong:
            return
        self.is_wrong = False
        self._after[tuple(held)] = summing.digest(held)
        self._reductions.append(reduces)

    def end(self, weights: Mapping[str, Tensor | None]) -> None:
        """Notes the same weights at the end of the step."""
        for names, after in self._after.items():
            left = summing.digest({name: weights.get(name) for name in names})
            self._ended.append((after, left))

    def finish(self) -> tuple[tuple[tuple[Digest, Digest], ...], bool]:
        """Returns, and forgets, `parted` and `reduces_in_update` of the step."""
        reduces = bool(self._reductions) and all(self._reductions)
        told = tuple(self._ended), reduces
        self.is_wrong = False
        self._after, self._reductions, self._ended = {}, [], []
        return told


def least_move(reader: Reader, step: int) -> float:
    """Returns how far one process moved the trained weights that moved least."""
    before = ("weights", step - 1) if step else ("initial", 0)
    moves = []
    known = reader.names(*before).keys() & reader.names("weights", step)
    for name in known & reader.names("gradients", step).keys():
        new = reader.get("weights", step, name)
        old = reader.get(*before, name)
        if new is not None and old is not None and new.numel():
            change = float((new - old).abs().max())
            moves.append(change / max(float(new.abs().max()), change, 1e-300))
    return min(moves, default=0.0)
