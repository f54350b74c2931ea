"""Runs a script as `__main__`, as torchrun starts it."""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import os
import sys
import types
from pathlib import Path

from ddpcheck.errors.problem import Problem, UsageError
from ddpcheck.ranks.messages import Seat
from ddpcheck.target.script import Script

_ID = "ddpcheck"  # of torchrun's job


def set_environment(seat: Seat) -> None:
    """Sets the variables that torchrun gives each process.

    A process without a group gets those of a group of one.

    *Source*: https://docs.pytorch.org/docs/stable/elastic/run.html, "Environment
    Variables".
    """
    world_size = max(1, seat.world_size)
    local_rank, local_size = seat.local if seat.world_size else (0, 1)
    os.environ.update(
        RANK=str(seat.rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK=str(local_rank),
        LOCAL_WORLD_SIZE=str(local_size),
        GROUP_RANK="0",
        GROUP_WORLD_SIZE="1",
        ROLE_RANK=str(seat.rank),
        ROLE_WORLD_SIZE=str(world_size),
        ROLE_NAME="default",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",  # nothing listens: init_process_group uses our store
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_MAX_RESTARTS="0",
        TORCHELASTIC_RUN_ID=_ID,
    )


def run(script: Script, seat: Seat) -> None:
    """Executes the script in this process, as `__main__`.

    Whatever the script raises is raised here, SystemExit included.

    Raises:
        UsageError: script-missing-file, for a module that does not exist.
    """
    os.chdir(script.folder)
    if script.module:
        code, spec = _of_module(script)
    else:
        code, spec = _of_file(script), None
    main = types.ModuleType("__main__")
    vars(main).update(
        __file__=code.co_filename,
        __builtins__=builtins,
        __spec__=spec,
        __package__=spec.parent if spec is not None else None,
    )
    # Where a child process started by "spawn" imports it again, it does so by this.
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    arguments = script.arguments_at(max(1, seat.world_size), seat.rank)
    sys.argv[:] = [code.co_filename, *arguments]
    exec(code, vars(main))  # noqa: S102 (that is what running a script is)


def _of_file(script: Script) -> types.CodeType:
    path = Path(script.path)
    sys.path.insert(0, str(path.parent))
    loader = importlib.machinery.SourceFileLoader("__main__", str(path))
    source = script.source or loader.get_data(str(path))
    return loader.source_to_code(source, str(path))


def _of_module(
    script: Script,
) -> tuple[types.CodeType, importlib.machinery.ModuleSpec]:
    sys.path.insert(0, script.folder)
    spec = importlib.util.find_spec(script.module)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{script.module}.__main__")
    code = None
    if spec is not None and spec.loader is not None:
        code = spec.loader.get_code(spec.name)  # type: ignore[attr-defined]
    if spec is None or code is None:
        raise UsageError(
            Problem(
                slug="script-missing-file",
                message=f"there is no module {script.module} to run",
                expected="ddpcheck run [options] -m MODULE ARGS",
                found="nothing that Python can import and run under that name",
                fix="run it where `python -m` finds it",
            )
        )
    return code, spec
