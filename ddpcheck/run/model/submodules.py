"""Modules of a model in place of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from ddpcheck.run import private
from ddpcheck.run.model import contents


def replace(
    model: nn.Module,
    wanted: Callable[[nn.Module], bool],
    function: Callable[[Any], nn.Module],
) -> nn.Module:
    """Returns the model with every wanted module replaced, in place below it.

    What has several names is replaced by one and the same module.
    """
    made: dict[int, nn.Module] = {}

    def new(module: nn.Module) -> nn.Module:
        if id(module) not in made:
            made[id(module)] = function(module)
        return made[id(module)]

    if wanted(model):
        return new(model)
    for module in list(contents.modules(model)):
        own = private.children(module)
        for name, child in list(own.items()):
            if child is not None and wanted(child):
                own[name] = new(child)
    return model
