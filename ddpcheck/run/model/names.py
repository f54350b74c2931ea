"""One dotted name per parameter and buffer, whatever wraps the model.

A wrapper adds components ("module.", "_orig_mod.", any name in a user's wrapper), may
be anywhere in the tree and may replace parameters. Names are taken before wrapping:
parameters are recognized by identity, and modules are marked with their names
(`keep_own`), so that the tensors of a marked module are known wherever it is. Other
tensors get their path without the components of torch's wrappers. Submodules of the
model that have such a name are marked as its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from ddpcheck.run import private
from ddpcheck.run.model import contents

_WRAPPER_PARTS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module"})
_OWN = "_ddpcheck_own_part"  # on modules with a submodule "module" that is no wrapper's
_PLACE = "_ddpcheck_place"  # on a bare model's modules: their paths
Modules = Sequence[tuple[str, nn.Module]]  # of a tree, by path
_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


class Names:
    """The names that the bare model gives its tensors."""

    def __init__(self, model: nn.Module) -> None:
        self._known = {id(p): name for name, p in contents.named_parameters(model)}
        self.short = shortener(model)
        self._short = {self.short(n): n for n in self._known.values()}
        self._buffers = [name for name, _ in contents.named_buffers(model)]
        self._short_buffers = {self.short(n): n for n in self._buffers}
        self.order = list(self._known.values())
        self._rank = {name: i for i, name in enumerate(self.order)}
        # Identities are reused once a tensor is freed: keep the tensors.
        self._kept = list(contents.parameters(model))

    def parameters(
        self, model: nn.Module, extra: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Returns the wrapped model's parameters in the bare model's order.

        `extra` are tensors that optimizers train and the model may not hold.
        """
        modules = list(contents.named_modules(model))
        # Nearly always all are known by identity, and no path is needed.
        short = functools.cache(functools.partial(_shortener, modules))
        found: dict[str, Tensor] = {
            self._known.get(id(parameter)) or self._by_path(short()(path)): parameter
            for path, parameter in _parameters(modules)
        }
        seen = {id(parameter) for parameter in found.values()}
        for other, tensor in (extra or {}).items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                known = self._known.get(id(tensor))
                if known is None or known in found:  # another tensor has its name now
                    known = other
                found[known] = tensor
        if list(found) == self.order:
            return found  # nearly always
        last = len(self._rank)
        return dict(sorted(found.items(), key=lambda kv: self._rank.get(kv[0], last)))

    def of(self, parameter: Tensor) -> str:
        """Returns the name of an original parameter, "" for another."""
        return self._known.get(id(parameter), "")

    def buffers(self, model: nn.Module) -> dict[str, Tensor]:
        """Returns the wrapped model's buffers by the bare model's names."""
        held = dict(contents.named_buffers(model))
        short = shortener(model) if held else str
        return {
            self._short_buffers.get(name, name): buffer
            for path, buffer in held.items()
            for name in [short(path)]
        }

    def are_all_in(self, parameters: Mapping[str, Tensor]) -> bool:
        """Returns whether all original parameters are still present."""
        return all(
            self._known.get(id(parameters.get(name))) == name for name in self.order
        )

    def is_original(self, parameter: Tensor) -> bool:
        """Returns whether the model was built with this very tensor."""
        return id(parameter) in self._known

    def _by_path(self, short: str) -> str:
        return self._short.get(short, short)


def keep_own(model: nn.Module) -> None:
    """Marks the modules of a bare model with their names before anything wraps it."""
    for module in contents.modules(model):
        if "module" in private.children(module) and not isinstance(module, _WRAPPERS):
            vars(module)[_OWN] = True
    modules = list(contents.named_modules(model))
    strip = _stripper(modules)
    for path, module in modules:
        # Plain data, as modules may be scripted or saved. A copy has another id.
        vars(module)[_PLACE] = path, strip(path, 0), id(module)


def for_optimizer(model: nn.Module) -> list[Any]:
    """Returns the parameters that the bare model's own method yields.

    A wrapper's method yields all parameters: if the model's class overrides it to
    select some, that selection applies in every process.
    """
    marked = (m for m in contents.modules(model) if not vars(m).get(_PLACE, " ")[0])
    bare = next(marked, model)
    has_own = type(bare).parameters is not nn.Module.parameters
    return list((bare if has_own else model).parameters())


def shortener(model: nn.Module) -> Callable[[str], str]:
    """Returns a function from dotted paths in a model to the bare model's names.

    By the innermost module on the path that the bare model has too.
    """
    return _shortener(list(contents.named_modules(model)))


def _shortener(modules: Modules) -> Callable[[str], str]:
    strip, places = _stripper(modules), _places(modules)
    root = next((path for path, (origin, _) in places.items() if not origin), "")
    if all(path == origin for path, (origin, _) in places.items()):
        return lambda path: strip(path, 0)  # not wrapped

    def short(path: str) -> str:
        if f"{root}.".startswith(f"{path}." if path else ""):
            return ""  # what wraps the model
        known = path
        while known and known not in places:
            known = known.rpartition(".")[0]
        if known not in places:
            return strip(path, 0)
        rest = strip(path, len(known.split(".")) if known else 0)
        return f"{places[known][1]}.{rest}".strip(".")

    return short


def _parameters(modules: Modules) -> Iterator[tuple[str, nn.Parameter]]:
    """Yields what `named_parameters` yields, of a tree that is known already."""
    seen: set[int] = set()
    for path, module in modules:
        for name, parameter in private.parameters(module).items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield f"{path}.{name}" if path else name, parameter


def _places(modules: Modules) -> dict[str, tuple[str, str]]:
    """Returns (path, name) in the bare model of its tensors, by path in this model.

    A copy has the name of its original if that is absent: a wrapper may copy the model,
    and a model with an average of one part copies that part.
    """
    marked = [
        (path, module, vars(module)[_PLACE])
        for path, module in modules
        if _PLACE in vars(module)
    ]
    taken = {origin: path for path, _, (origin, _, _) in reversed(marked)}
    taken |= {
        origin: path for path, module, (origin, _, of) in marked if of == id(module)
    }
    return {
        path: (origin, name)
        for path, _, (origin, name, _) in marked
        if taken[origin] == path
    }


def _stripper(modules: Modules) -> Callable[[str, int], str]:
    """Returns a function that removes components of torch's wrappers from paths.

    It returns the rest of a dotted path from a component on.
    """
    added = {
        f"{path}.{part}".lstrip(".")
        for path, module in modules
        for part in _WRAPPER_PARTS & private.children(module).keys()
        if part != "module" or _OWN not in vars(module)
    }

    def strip(path: str, start: int) -> str:
        if not added and not start:
            return path
        parts = path.split(".") if path else []
        return ".".join(
            part
            for number, part in enumerate(parts[start:], start=start)
            if part not in _WRAPPER_PARTS or ".".join(parts[: number + 1]) not in added
        )

    return strip
