"""What a rank begins with, against what one process began with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ddpcheck import summing
from ddpcheck.run import contents
from ddpcheck.run import model as models
from ddpcheck.run.names import Names, shortener
from ddpcheck.run.record import laid
from ddpcheck.target import Target
from ddpcheck.trace import Reader


def _differing(reader: Reader, quantity: str, named: Mapping[str, Tensor]) -> list[str]:
    """Returns the names of those that are not what one process began with."""
    references = laid.kept(
        reader, (quantity, 0), lambda: laid.group(reader, quantity, 0)
    )
    if references is not None and references.is_same(named):
        return []  # as nearly always
    return [n for n, tensor in named.items() if reader.differs(quantity, 0, n, tensor)]


def check_seeded(
    target: Target, reader: Reader, names: Names, model: nn.Module
) -> None:
    """Holds the first rank to the reference's weights; others may be overwritten.

    What is not trained may be memory that nothing has initialised: it becomes the
    reference's.

    Raises:
        UsageError: target-unseeded.
    """
    parameters = names.parameters(model)
    for name in _differing(reader, "initial", parameters):
        reference, mine = reader.get("initial", 0, name), parameters[name]
        if mine.requires_grad or reference is None or reference.shape != mine.shape:
            raise models.unseeded(target, name)
        mine.data.copy_(reference)


def facts(reader: Reader, names: Names, wrapped: nn.Module) -> dict[str, Any]:
    """Returns which weights and buffers differ before the first step, as facts."""
    differ = _differing(reader, "initial", names.parameters(wrapped))
    buffers = _differing(reader, "initial_buffers", names.buffers(wrapped))
    short = shortener(wrapped)
    found: dict[str, Any] = {
        "start_differs": differ,
        "start_buffers_differ": buffers,
        "order": [short(name) for name, _ in contents.named_parameters(wrapped)],
    }
    if differ:
        found["start"] = summing.digest(dict(names.parameters(wrapped)))
    if buffers:
        found["start_buffers"] = summing.digest(dict(names.buffers(wrapped)))
    return found


def of_one_process(reader: Reader, names: Names) -> dict[str, Tensor]:
    """Returns one process's first weights and buffers by name."""
    return {
        names.short(name): tensor
        for quantity in ("initial", "initial_buffers")
        for name in reader.names(quantity, 0)
        if (tensor := reader.get(quantity, 0, name)) is not None
    }
