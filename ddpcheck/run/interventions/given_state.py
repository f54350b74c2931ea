"""Substitutes "state": what is not trained, as one process has it."""

from __future__ import annotations

from collections.abc import Container

from torch import nn

from ddpcheck.compare.trace import Reader
from ddpcheck.run.model.names import Names


def give(
    model: nn.Module, names: Names, reader: Reader, step: int, modules: Container[str]
) -> None:
    """Overwrites buffers and untrained parameters of these modules after a step."""
    parameters = names.parameters(model).items()
    for quantity, named in {
        "buffers": names.buffers(model),
        "weights": {n: p for n, p in parameters if not p.requires_grad},
    }.items():
        for name, tensor in named.items():
            reference = reader.find(quantity, step, name)
            if name.rpartition(".")[0] in modules and reference is not None:
                tensor.data.copy_(reference)
