"""Facts of a divergence under a parameter server."""

from __future__ import annotations

from dataclasses import dataclass

from ddpcheck.diagnose.proposal import Proposal
from ddpcheck.report.data import Difference, Run

__all__ = ["Proposal", "ServerCase"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCase:
    """A divergence of workers with a parameter server.

    `reduce`: what the server makes of the workers' gradients, "mean" or "sum". `first`:
    the gradients of the first step that differ, as worker 0 compared them. `optimizer`:
    the name of its class; `numbers`: of its parameter groups at the first update.
    `clips`: whether the step clips gradients by their norm.
    """

    run: Run
    reduce: str
    first: tuple[Difference, ...] = ()
    optimizer: str = ""
    numbers: tuple[dict[str, float], ...] = ()
    clips: bool = False
