"""Substitutes "gradients": what the update makes of right gradients."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ddpcheck.run.record import flattened
from ddpcheck.run.record.recorders import ComparingRecorder


@dataclass(frozen=True, slots=True)
class GivingRecorder:
    """Overwrites gradients with the reference's before an update uses them."""

    recorder: ComparingRecorder

    def take(self, quantity: str, step: int, named: dict[str, Tensor | None]) -> None:
        """Gives what both sides have, then compares the group."""
        if quantity.startswith("gradients"):
            references = flattened.group(self.recorder.reader, quantity, step)
            for name, tensor in named.items():
                reference = references.get(name)
                if tensor is not None and reference is not None:
                    tensor.detach().copy_(reference)
        self.recorder.take(quantity, step, named)
