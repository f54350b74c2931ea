"""The modules and tensors of a model, independent of overridden methods.

A class may override `parameters` to return a part, a list or groups for an optimizer,
or `children` to hide submodules; a scripted module has its own containers. ddpcheck
records what the modules hold. For the same reason hooks are registered by the methods
of `nn.Module`: those of a scripted module raise, yet Python calls of it run the hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from ddpcheck.run import private


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yields what `nn.Module.named_modules` does: each module once, the model first."""
    return _named_modules(model, "", set())


def _named_modules(
    module: nn.Module, path: str, seen: set[int]
) -> Iterator[tuple[str, nn.Module]]:
    if id(module) in seen:
        return
    seen.add(id(module))
    yield path, module
    start = f"{path}." if path else ""
    for name, child in private.children(module).items():
        if child is not None:
            yield from _named_modules(child, start + name, seen)


def modules(model: nn.Module) -> Iterator[nn.Module]:
    """Yields the modules of `named_modules`."""
    return (module for _, module in named_modules(model))


def named_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yields what `nn.Module.named_parameters` does: each parameter once."""
    return _named(model, private.parameters)


def parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """Yields the parameters of `named_parameters`."""
    return (parameter for _, parameter in named_parameters(model))


def named_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields what `nn.Module.named_buffers` does: each buffer once."""
    return _named(model, private.buffers)


def buffers(model: nn.Module) -> Iterator[Tensor]:
    """Yields the buffers of `named_buffers`."""
    return (buffer for _, buffer in named_buffers(model))


def tensors(model: nn.Module) -> Iterator[Tensor]:
    """Yields the parameters, then the buffers."""
    return (tensor for _, tensor in named_tensors(model))


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields the parameters by name, then the buffers."""
    yield from named_parameters(model)
    yield from named_buffers(model)


def own_modules(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yields the direct submodules by each of their names."""
    return _own(private.children(module))


def own_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yields the parameters that one module itself holds, by name."""
    return _own(private.parameters(module))


def own_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields the buffers that one module itself holds, by name."""
    return _own(private.buffers(module))


def _own(held: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((name, tensor) for name, tensor in held.items() if tensor is not None)


def _named(model: nn.Module, held: private.Named) -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    for path, module in named_modules(model):
        for name, tensor in held(module).items():
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"{path}.{name}" if path else name, tensor


def replace(
    model: nn.Module,
    wanted: Callable[[nn.Module], bool],
    function: Callable[[Any], nn.Module],
) -> nn.Module:
    """Returns the model with every wanted module replaced, in place below it.

    A module with several names is replaced by one new module.
    """
    made: dict[int, nn.Module] = {}

    def new(module: nn.Module) -> nn.Module:
        if id(module) not in made:
            made[id(module)] = function(module)
        return made[id(module)]

    if wanted(model):
        return new(model)
    for module in list(modules(model)):
        own = private.children(module)
        for name, child in list(own.items()):
            if child is not None and wanted(child):
                own[name] = new(child)
    return model
