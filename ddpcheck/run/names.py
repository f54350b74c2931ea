"""One dotted name per parameter and buffer, whatever wraps the model.

A wrapper adds components ("module.", "_orig_mod."), may sit anywhere in the tree and
may have replaced parameters by others. Names are taken before wrapping and carried
over by identity; a tensor that is not known gets its own path without the wrappers'
components. A model may have parts of these names, too: `keep_own` marks what holds them
before anything wraps it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from ddpcheck.run import private

_WRAPPER_PARTS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module"})
_OWN = "_ddpcheck_own_part"  # on what has a part "module" that no wrapper adds
_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


class Names:
    """The names that the bare model gives its tensors."""

    def __init__(self, model: nn.Module) -> None:
        self._known = {id(p): name for name, p in model.named_parameters()}
        self.short = shortener(model)
        self._short = {self.short(n): n for n in self._known.values()}
        self._buffers = [name for name, _ in model.named_buffers()]
        self._short_buffers = {self.short(n): n for n in self._buffers}
        self.order = list(self._known.values())
        self._rank = {name: i for i, name in enumerate(self.order)}
        # Identities are reused once a tensor is freed: keep the tensors.
        self._kept = list(model.parameters())

    def parameters(
        self, model: nn.Module, extra: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Returns the wrapped model's parameters in the bare model's order.

        `extra` are tensors that optimizers train and the model may not hold.
        """
        short = shortener(model)
        found: dict[str, Tensor] = {
            self._name(short(path), parameter): parameter
            for path, parameter in model.named_parameters()
        }
        seen = {id(parameter) for parameter in found.values()}
        for other, tensor in (extra or {}).items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                known = self._known.get(id(tensor))
                if known is None or known in found:  # another has taken its place
                    known = other
                found[known] = tensor
        if list(found) == self.order:
            return found  # as nearly always
        last = len(self._rank)
        return dict(sorted(found.items(), key=lambda kv: self._rank.get(kv[0], last)))

    def buffers(self, model: nn.Module) -> dict[str, Tensor]:
        """Returns the wrapped model's buffers by the bare model's names."""
        short = shortener(model)
        return {
            self._short_buffers.get(name, name): buffer
            for path, buffer in model.named_buffers()
            for name in [short(path)]
        }

    def are_all_in(self, parameters: Mapping[str, Tensor]) -> bool:
        """Returns whether all tensors that the model was built with are still there."""
        return all(
            self._known.get(id(parameters.get(name))) == name for name in self.order
        )

    def is_original(self, parameter: Tensor) -> bool:
        """Returns whether the model was built with this very tensor."""
        return id(parameter) in self._known

    def _name(self, short: str, parameter: nn.Parameter) -> str:
        known = self._known.get(id(parameter))
        return self._short.get(short, short) if known is None else known


def keep_own(model: nn.Module) -> None:
    """Marks the modules of a bare model that have a part `module` of their own."""
    for module in model.modules():
        if "module" in private.children(module) and not isinstance(module, _WRAPPERS):
            vars(module)[_OWN] = True


def shortener(model: nn.Module) -> Callable[[str], str]:
    """Returns what takes the wrappers' components off dotted paths within a model."""
    added = {
        f"{path}.{part}".lstrip(".")
        for path, module in model.named_modules()
        for part in _WRAPPER_PARTS & private.children(module).keys()
        if part != "module" or _OWN not in vars(module)
    }

    def short(path: str) -> str:
        parts = path.split(".") if added else ()
        kept = [
            part
            for number, part in enumerate(parts)
            if part not in _WRAPPER_PARTS or ".".join(parts[: number + 1]) not in added
        ]
        return ".".join(kept) if parts else path

    return short
