"""The target inside a rank: imported once in the fork server, or here."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch

from ddpcheck import devices
from ddpcheck import target as target_module
from ddpcheck.errors import Problem, UsageError
from ddpcheck.ranks import preload
from ddpcheck.run import (
    isolation,
)
from ddpcheck.target import Target, TargetRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The target, or what is wrong with it."""

    ref: TargetRef
    target: Target | None = None
    problem: Problem | None = None

    @property
    def needs_later(self) -> bool:
        """Whether ranks will train it; see ranks.pool.Preload."""
        return self.problem is None


def load_in_server(path: str, names: list[list[str]]) -> Loaded:
    """Imports the target before any rank is forked; what the fork server calls."""
    torch.set_num_threads(1)  # thread pools would not survive the fork
    ref = TargetRef(path=path, names=tuple((a, b) for a, b in names))
    try:
        target = target_module.load(ref)
        devices.check_untouched(target.name)
        return Loaded(ref=ref, target=target)
    except UsageError as error:
        return Loaded(ref=ref, problem=error.problem)


def load(ref: TargetRef) -> Target:
    """Returns the target, from the fork server where it has imported it.

    Raises:
        UsageError: as ddpcheck.target.load.
    """
    made = preload.RESULT
    if isinstance(made, Loaded) and made.ref == ref:
        if made.problem is not None:
            raise UsageError(made.problem)
        assert made.target is not None
        return made.target
    return target_module.load(ref)


def fingerprint(target: Target) -> int:
    """Returns a number that changes with the state of the target's own module."""
    for module in (sys.modules.get(getattr(target.batch, "__module__", "")),):
        if module is not None and getattr(module, "__file__", None) == target.path:
            return isolation.fingerprint(module)
    return 0
