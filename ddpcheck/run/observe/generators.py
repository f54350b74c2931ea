"""Generators of numpy's and Python's that the model or the user's modules hold.

torch tells of every draw of its own; of theirs only the state tells.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import nn

from ddpcheck.run.model import contents
from ddpcheck.run.process import fingerprint, modules

_KINDS = (np.random.Generator, np.random.RandomState, random.Random)


def held(model: nn.Module) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yields (attributes or globals, name, generator), live."""
    owners = [vars(module) for module in contents.modules(model)]
    owners += [vars(sys.modules[name]) for name in modules.users()]
    for names in owners:
        for name, value in list(names.items()):
            if isinstance(value, _KINDS):
                yield names, name, value


def kind_of(generator: Any) -> type:
    """Returns the class of numpy's or Python's that a generator is an object of."""
    return next(kind for kind in _KINDS if isinstance(generator, kind))


def states(model: nn.Module) -> int:
    """Returns a number that changes with the state of any; 0 where there is none."""
    found = [fingerprint.own_state(generator) for _, _, generator in held(model)]
    return hash(repr(found)) if found else 0
