"""What happens to the tensors of the reference: they are written."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from ddpcheck.compare.trace import Writer


@dataclass(slots=True)
class WritingRecorder:
    """Writes everything to a trace, and notes what is not finite."""

    writer: Writer
    not_finite: list[str] = field(default_factory=list)

    def take(self, quantity: str, step: int, named: dict[str, Tensor | None]) -> None:
        """Appends the group to the trace."""
        # What is not trained may be a mask of 1e9: no size for what is.
        fixed = {n for n, t in named.items() if t is not None and not t.requires_grad}
        is_weights = quantity == "weights"
        self.writer.add(quantity, step, named.items(), fixed if is_weights else set())
        index, key = self.writer.index, (quantity, step)
        gradients = quantity.startswith("gradients")
        if (key in index.has_nan and (gradients or is_weights)) or (
            key in index.has_infinity and gradients
        ):
            self.not_finite.append(f"{quantity} at step {step + 1}")
