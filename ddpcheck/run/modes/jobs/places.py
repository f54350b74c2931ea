"""Where the target's parts are defined: "file.py:line", for messages only.

No rule reads source text; this gives the place to look at, not the mistake.
"""

from __future__ import annotations

import inspect
import os
from typing import Any

from torch import nn

from ddpcheck.ranks.worker import Context
from ddpcheck.run.model import user_code
from ddpcheck.run.modes.single import SINGLE
from ddpcheck.run.process import isolation
from ddpcheck.run.process.loading import borrowed
from ddpcheck.run.spec import RunSpec
from ddpcheck.target.target import TargetRef

MODULE = "module "


def find(context: Context, *, ref: TargetRef, keys: tuple[str, ...]) -> str | None:
    """Returns "file.py:line" of the first key that has a place.

    Keys: names of the target's file ("loss", "train_step"), "module NAME", or what a
    line of a script does ("forward", see run/script/driver.py).
    """
    del context
    with borrowed(ref) as target, isolation.isolated():
        for key in keys:
            if key in target.places:
                return target.places[key]
            if key.startswith(MODULE):
                made = user_code.model(target, RunSpec(mode=SINGLE.name), seed=0)
                name = key.removeprefix(MODULE)
                thing: Any = type(nn.Module.get_submodule(made, name))
            else:
                thing = getattr(target, key, None)
            place = _place(thing)
            if place:
                return place
    return None


def _place(thing: Any) -> str | None:
    module = getattr(thing, "__module__", "")
    if thing is None or module.startswith(("torch.", "ddpcheck.run.script.")):
        return None
    try:
        path = inspect.getsourcefile(thing)
        line = inspect.getsourcelines(thing)[1]
    except (TypeError, OSError):
        return None
    return f"{os.path.relpath(path)}:{line}" if path else None
