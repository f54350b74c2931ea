"""The group of processes in which torchrun or a batch system started this one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The rank of this process in the group, and the address of the group's store.

    `local_rank` and `local_world_size` count the processes of one machine. `attempt`
    is torchrun's count of restarts: each uses other names in the store.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    address: str
    port: int
    attempt: str = "0"
    has_store: bool = False  # the launcher holds the store; else rank 0 does

    @property
    def is_one_machine(self) -> bool:
        """Whether all processes are on this machine."""
        return self.local_world_size == self.world_size


def given(environment: Mapping[str, str]) -> Group | None:
    """Returns the group that the environment variables describe, None for none.

    A group of one process counts as none, and so do variables with impossible values:
    then ddpcheck starts its own ranks.

    *Source*: https://docs.pytorch.org/docs/stable/elastic/run.html, "Environment
    Variables".
    """
    if any(not environment.get(name) for name in _NEEDED):
        return None
    try:
        rank, world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        port = int(environment["MASTER_PORT"])
        local_rank = int(environment.get("LOCAL_RANK") or 0)
        local_world_size = int(environment.get("LOCAL_WORLD_SIZE") or 1)
    except ValueError:
        return None
    if not 0 <= rank < world_size or world_size == 1:
        return None
    return Group(
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        address=environment["MASTER_ADDR"],
        port=port,
        attempt=environment.get("TORCHELASTIC_RESTART_COUNT") or "0",
        has_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def unusable(environment: Mapping[str, str]) -> str:
    """Returns the variables of an impossible group as text; "" for none."""
    found = {name: environment.get(name) for name in _NEEDED}
    if not all(found.values()) or found["WORLD_SIZE"] == "1" or given(environment):
        return ""
    return ", ".join(f"{name}={value}" for name, value in found.items())
