"""Scripts that start torchrun themselves: what it would start runs in this process.

`python -m torch.distributed.run`, `accelerate launch` and `fabric run` end in one
function of torch, which starts a Python process for each rank and waits for it. Under
the check the ranks are there already: each runs the script itself, and so does the
single process.

A script that has joined its process group starts processes for something else.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ddpcheck.ranks.messages import Seat
from ddpcheck.run.process.replacing import replaced
from ddpcheck.run.script import launch, spawning
from ddpcheck.target import script as scripts

_MODULE = "torch.distributed.launcher.api"
_LOCAL_RANK = "${local_rank}"  # torch.distributed.elastic.utils.macros
_FLAGS = "-u", "-B"  # of Python, that say nothing about the script


@contextlib.contextmanager
def in_place(seat: Seat, has_joined: Callable[[], bool]) -> Iterator[None]:
    """Context in which what the script would give to torchrun runs in this process.

    `has_joined`: whether the script has joined its process group.
    """
    with contextlib.ExitStack() as stack:

        def replace(module: ModuleType) -> None:
            start = module.launch_agent

            def starting(config: Any, entry: Any, args: Any, **kwargs: Any) -> Any:
                if has_joined() or not _is_python(entry):
                    return start(config, entry, args, **kwargs)
                number = config.max_nodes * config.nproc_per_node
                spawning.check_number(seat, number)
                return {seat.rank: _run(seat, entry, args)}

            stack.enter_context(replaced(module, launch_agent=starting))

        if _MODULE in sys.modules:
            replace(sys.modules[_MODULE])
        else:
            # Few scripts need it, and its import takes half a second.
            finder = _Finder(replace)
            sys.meta_path.insert(0, finder)
            stack.callback(sys.meta_path.remove, finder)
        yield


class _Finder(importlib.abc.MetaPathFinder):
    """Calls `then` with the module that has torch's function, once it is imported."""

    def __init__(self, then: Callable[[ModuleType], None]) -> None:
        self._then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns where the module is, and None for any other."""
        if name != _MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        loader: Any = spec.loader if spec is not None else None
        if loader is not None:
            execute = loader.exec_module

            def executing(module: ModuleType) -> None:
                execute(module)
                self._then(module)

            loader.exec_module = executing
        return spec


def _is_python(entry: Any) -> bool:
    """Returns whether a function or Python is to be started, no other program."""
    return callable(entry) or Path(str(entry)).name.startswith("python")


def _run(seat: Seat, entry: Any, args: Sequence[Any]) -> Any:
    if callable(entry):
        return entry(*args)
    local_rank = seat.local[0] if seat.world_size else 0
    words = [str(word).replace(_LOCAL_RANK, str(local_rank)) for word in args]
    while words and words[0] in _FLAGS:
        del words[0]
    try:
        launch.run(scripts.parsed(words), seat)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    return None
