"""Calls of a wrapped model's parts that do not come through the wrapper.

DDP reduces what backward finds after its own forward. A step may call the wrapper
once and what is inside it another time: the second backward stays local.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ddpcheck.run.model import contents
from ddpcheck.run.model.averaged import PlainWrapper
from ddpcheck.run.model.names import shortener


@contextlib.contextmanager
def noting(wrapped: nn.Module, note: Callable[[str], None]) -> Iterator[set[str]]:
    """Fills the yielded set with the modules that are called past their wrapper.

    Args:
        wrapped: the model, with stand-ins where DDP objects were.
        note: is told "F" of a wrapper's forward and "P" of a call past it, both where
            gradients are enabled.
    """
    found: set[str] = set()
    depth, handles, short = 0, [], shortener(wrapped)

    def watch(module: nn.Module, event: str, name: str) -> None:
        def enter(*_: Any) -> None:
            nonlocal depth
            depth += 1
            if depth == 1 and torch.is_grad_enabled():
                note(event)
                if event == "P":
                    found.add(name)

        def leave(*_: Any) -> None:
            nonlocal depth
            depth -= 1

        handles.append(nn.Module.register_forward_pre_hook(module, enter))
        handles.append(nn.Module.register_forward_hook(module, leave, always_call=True))

    paths = {id(m): short(path) for path, m in contents.named_modules(wrapped)}
    for wrapper in [m for m in contents.modules(wrapped) if type(m) is PlainWrapper]:
        watch(wrapper, "F", "")
        for module in contents.modules(wrapper.module):
            if any(p.requires_grad for p in contents.parameters(module)):
                watch(module, "P", paths[id(module)])
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
