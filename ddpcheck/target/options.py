"""What a check may be asked to do: one frozen value, from any front end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

DEFAULT_WORLD_SIZES = (2, 4, 8)
DEFAULT_STEPS = 3  # some faults show in the third step only: DDP rebuilds its buckets
DEFAULT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings of a check. None means: not chosen, find the default.

    `accept` maps slugs to the user's reasons. `tolerance` is an rtol. `project` holds
    world_sizes, simulate and tolerance of pyproject.toml, which come after the target's
    own. `ps_reduce` is what a parameter server makes of the workers' gradients: "mean",
    the default, or "sum". `simulate` has world sizes of DDP played by one process.
    `max_memory` in GiB. `timeout_s` is the bound of every run where it was chosen: a
    run that needs more gets more only by default.
    """

    world_sizes: tuple[int, ...] | None = None
    modes: tuple[str, ...] | None = None
    ps_reduce: str | None = None
    simulate: tuple[int, ...] | None = None
    batch_norm: tuple[str, ...] = ("asis",)
    loss: tuple[str, ...] = ("asis",)
    noise: str = "asis"
    steps: int = DEFAULT_STEPS
    dtype: str = "auto"
    device: str = "auto"
    tolerance: float | None = None
    accept: dict[str, str] = field(default_factory=dict)
    fix: bool = True
    timeout_s: float | None = None
    max_memory: float | None = None
    seed: int = 0
    project: dict[str, Any] = field(default_factory=dict)

    @property
    def limit_s(self) -> float:
        """The deadline of the import, and of a run where it needs no more."""
        return DEFAULT_TIMEOUT_S if self.timeout_s is None else self.timeout_s

    @property
    def run_device(self) -> str:
        """The device of the runs: the CPU by default, where results are exact."""
        return "cpu" if self.device == "auto" else self.device
