"""How many bytes the tensors of a model in training take."""

from __future__ import annotations

from dataclasses import dataclass

LARGE = 64 << 20  # bytes of a model that one process computes with all cores


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes of one model's tensors.

    `recorded` is what the reference writes into memory, 0 where it goes to a disk.
    """

    parameters: int
    gradients: int
    optimizer: int
    recorded: int

    @property
    def is_large(self) -> bool:
        """Whether one process computes with all cores."""
        return self.parameters >= LARGE

    @property
    def trained(self) -> int:
        """Bytes of a model in training, without any wrapper."""
        return self.parameters + self.gradients + self.optimizer
