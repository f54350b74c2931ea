"""A step that sorts its samples before the model, by length say.

What a module gets then is in no order of the batch, and shards are sorted otherwise
than the batch. A probe gives the batch in the order in which the model gets it: sorting
changes nothing any more, in the single-process run and on the shards. Those are other
shards than the run's; what the probe proposes is tried on the run itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ddpcheck.compare import tree
from ddpcheck.diagnose.probes.micro import RowCount
from ddpcheck.diagnose.probes.teacher import Hooks, tensors_of


def order_of_calls(
    model: nn.Module, batch: Any, step: Callable[[Hooks], object]
) -> tuple[list[int], Tensor | None]:
    """Returns the rows of each call of the model, and the order of the batch in them.

    Args:
        model: that the step calls.
        batch: that the step is given.
        step: does it under hooks.
    """
    counted, given, hooks = RowCount(), GivenOrder(batch), Hooks()

    def before(*call: Any) -> None:
        counted.before(*call)
        given.before(*call)

    hooks.attach(model, before, lambda *_: None)
    step(hooks)
    return counted.rows, given.order


class GivenOrder:
    """The order in which modules get a batch's rows; attach to `Hooks`.

    `order`: numbers of the batch's rows, None where it is the batch's own, or unknown.
    """

    def __init__(self, batch: Any) -> None:
        self._leaves = [t for t in tree.held(batch) if t.dim() and len(t) > 1]
        self._is_known = any(True for _ in tree.lists(batch))  # these stay as they are
        self.order: Tensor | None = None

    def before(
        self, _name: str, _call: int, _module: Any, args: Any, kwargs: Any
    ) -> None:
        """Looks at what a module is given, until rows of the batch are recognised."""
        for _, given in tensors_of((args, kwargs)):
            for leaf in () if self._is_known else self._leaves:
                found = _order_of(given, leaf)
                if found is not None:
                    self._is_known = True
                    if found != list(range(len(leaf))):
                        self.order = torch.tensor(found)
                    return


def _order_of(given: Tensor, leaf: Tensor) -> list[int] | None:
    """Returns which rows of `leaf` these are, each once; None where they are not.

    A step may cut off the end of all rows, which no sample of the batch needs. Equal
    rows, as labels are, tell no other order than the batch's own.
    """
    if given.dtype != leaf.dtype or given.dim() != leaf.dim():
        return None
    if len(given) != len(leaf) or any(
        a > b for a, b in zip(given.shape, leaf.shape, strict=True)
    ):
        return None
    mine, theirs = _rows(given), _rows(leaf[tuple(map(slice, given.shape))])
    if mine == theirs:
        return list(range(len(leaf)))
    places = {row: number for number, row in enumerate(theirs)}
    if len(places) < len(theirs) or places.keys() != set(mine):
        return None
    return [places[row] for row in mine]


def _rows(tensor: Tensor) -> list[bytes]:
    flat = tensor.detach().cpu().reshape(len(tensor), -1).contiguous()
    return [row.tobytes() for row in flat.view(torch.uint8).numpy()]
