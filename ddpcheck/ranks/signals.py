"""The signal by which a process of the engine is asked where it is.

Not SIGUSR1: a cluster's schedulers send that one, and training code has handlers of its
own for it, to save and leave. It goes to ranks that are well, too.
"""

from __future__ import annotations

import signal

_REALTIME = getattr(signal, "SIGRTMIN", None)

STACK: int = signal.SIGUSR1 if _REALTIME is None else _REALTIME + 7
