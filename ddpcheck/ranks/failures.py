"""What keeps the engine itself from working; no fault of what it runs."""

from __future__ import annotations


class PreloadError(Exception):
    """The fork server did not get through its imports.

    `kind` is "raised", "died" or "hung"; `detail` a traceback, a stack or output.
    `of_user`: torch and ddpcheck had been imported. `limit_s`: what there was time for.
    """

    def __init__(
        self, kind: str, detail: str, *, of_user: bool = True, limit_s: float = 0.0
    ) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail
        self.of_user = of_user
        self.limit_s = limit_s


class ServerDiedError(Exception):
    """The fork server was killed, and all ranks with it: no fault of any job's."""

    def __init__(
        self, message: str = "the fork server was killed, and all ranks with it"
    ) -> None:
        super().__init__(message)


def _advice(detail: str) -> str:
    if "find address" in detail:  # gloo's words for an interface that is down
        return "ranks meet over the loopback interface: ip link set lo up"
    return (
        "raise the limit (ulimit -u, ulimit -n, the container's pids) or ask for "
        "fewer ranks"
    )


class NoMoreProcessesError(ServerDiedError):
    """Ranks could not be started, or could not meet: no code of the user's has run.

    `detail` is what the system said.
    """

    def __init__(self, world_size: int, detail: str) -> None:
        super().__init__(
            f"no process for all ranks of world size {world_size}: {detail}\n"
            f"  {_advice(detail)}",
        )
