"""A torch without any of the private names that ddpcheck.run.private looks for."""

from __future__ import annotations

import importlib.util
from types import ModuleType

# What the module chooses when it is imported.
NAMES = (
    *("buffers", "parameters", "children", "convert", "CONVERSIONS", "version"),
    *("tensor_hooks", "leaves", "no_torch_function", "BATCH_NORMS", "BatchNorm"),
    *("data_parallel_functions", "DispatchMode", "DISPATCHES", "transforms"),
    *("forward_hooks", "forward_pre_hooks", "backward_hooks", "COUNTS_VERSIONS"),
)


def found_nothing() -> ModuleType:
    """Returns a copy of the module that found nothing when it was imported."""
    spec = importlib.util.find_spec("ddpcheck.run.private")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    vars(made).update(hasattr=lambda *_: False, getattr=lambda *found: found[2])
    spec.loader.exec_module(made)
    return made
