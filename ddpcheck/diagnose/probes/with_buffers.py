"""Whether a module differs by what is in its buffers alone.

It may have written them itself, or the training step before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ddpcheck.diagnose.probes import modules
from ddpcheck.diagnose.probes.segments import SAME
from ddpcheck.diagnose.probes.teacher import closest, key_of
from ddpcheck.run.model import contents

# (quantity, key, the rank's own) -> the reference's
Recorded = Callable[[str, str, Tensor], Tensor | None]


@dataclass(frozen=True, slots=True)
class Call:
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


def is_right(call: Call, recorded: Recorded, rows: tuple[int, int, int]) -> bool:
    """Returns whether it returns the reference's rows with the reference's buffers.

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
    call: Call,
    outputs: list[tuple[str, Tensor]],
    recorded: Recorded,
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
