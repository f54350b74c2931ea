"""The target inside a rank: imported once in the fork server, or here."""

from __future__ import annotations

import sys

import torch

from ddpcheck import target as target_module
from ddpcheck.errors import Problem, UsageError
from ddpcheck.ranks import preload
from ddpcheck.run import (
    isolation,
)
from ddpcheck.target import Target, TargetRef


def load_in_server(
    path: str, names: list[list[str]]
) -> tuple[TargetRef, Target | None, Problem | None]:
    """Imports the target before any rank is forked; what the fork server calls."""
    torch.set_num_threads(1)  # thread pools would not survive the fork
    ref = TargetRef(path=path, names=tuple((a, b) for a, b in names))
    try:
        return ref, target_module.load(ref), None
    except UsageError as error:
        return ref, None, error.problem


def load(ref: TargetRef) -> Target:
    """Returns the target, from the fork server where it has imported it.

    Raises:
        UsageError: as ddpcheck.target.load.
    """
    if preload.RESULT is not None and preload.RESULT[0] == ref:
        _, target, problem = preload.RESULT
        if problem is not None:
            raise UsageError(problem)
        assert target is not None
        loaded: Target = target
        return loaded
    return target_module.load(ref)


def fingerprint(target: Target) -> int:
    """Returns a number that changes with the state of the target's own module."""
    for module in (sys.modules.get(getattr(target.batch, "__module__", "")),):
        if module is not None and getattr(module, "__file__", None) == target.path:
            return isolation.fingerprint(module)
    return 0
