"""Forward hooks on all modules, and the keys of the tensors that modules return.

The key of a tensor is "MODULE#CALL/PATH": the module's name, the number of the call in
the micro-batch, and the path of the tensor in what the call takes or returns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ddpcheck.compare import tree
from ddpcheck.errors import code_origin
from ddpcheck.run import private
from ddpcheck.run.model import contents
from ddpcheck.run.model.averaged import PlainWrapper
from ddpcheck.run.model.names import shortener


@dataclass(slots=True)
class Hooks:
    """Forward hooks on all modules of a model; call `remove`.

    Calls inside a transform of torch.func (vmap, grad) are ignored: their tensors have
    no values to record. So are calls in which another method stands for `forward`: a
    library calls training_step by the wrapper, as Lightning does, and the model's own
    call is inside.

    `calls_per_micro`: model calls per micro-batch, after which calls are counted from 0
    again; 0 if the step has no micro-batches.
    """

    calls_per_micro: int = 0
    micro: int = 0
    handles: list[Any] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)
    is_paused: bool = False
    is_redirected: bool = False  # a call of the model stood for another method
    # Calls, as "NAME#CALL", whose input was replaced by a hook of the target.
    remade: set[str] = field(default_factory=set)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Ignores calls: the probe tries a module's forward."""
        self.is_paused = True
        try:
            yield
        finally:
            self.is_paused = False

    def attach(
        self,
        model: nn.Module,
        before: Callable[[str, int, nn.Module, Any, Any], Any] | None,
        after: Callable[[str, int, nn.Module, Any], Any],
    ) -> None:
        """Calls `before` and `after` around every call of every module.

        `before(name, call, module, args, kwargs)` returns (args, kwargs) or None;
        `after(name, call, module, output)` returns the output or None.
        """
        for name, module in hooked(model).items():
            self._attach(name, module, before, after)

    def _attach(self, name: str, module: nn.Module, before: Any, after: Any) -> None:
        given: list[list[Tensor]] = []  # before the target's hooks
        forward, stands_in = _code_of(module), list[bool]()

        def note(_: nn.Module, args: Any, kwargs: Any) -> None:
            given.append(tree.held((args, kwargs)))

        def enter(called: nn.Module, args: Any, kwargs: Any) -> Any:
            before_hooks = given.pop() if given else None
            if self.is_paused or private.transforms():
                return None
            stands_in.append(_code_of(called) not in (forward, None))
            if stands_in[-1]:
                self.is_redirected |= not name
                return None
            if not name and self.calls.get("", 0) == self.calls_per_micro > 0:
                self.calls.clear()
                self.micro += 1
            call = self.calls.get(name, 0)
            self.calls[name] = call + 1
            self.open.append(f"{name}#{call}")
            now = tree.held((args, kwargs)) if before_hooks else []
            if before_hooks and list(map(id, before_hooks)) != list(map(id, now)):
                self.remade.add(self.open[-1])
            return before(name, call, module, args, kwargs) if before else None

        def leave(_: nn.Module, __: Any, output: Any) -> Any:
            if self.is_paused or private.transforms() or stands_in.pop():
                return None
            call = int(self.open.pop().rpartition("#")[2])
            return after(name, call, module, output)

        if private.forward_pre_hooks(module):
            first = nn.Module.register_forward_pre_hook(
                module, note, prepend=True, with_kwargs=True
            )
            self.handles.append(first)
        self.handles.append(
            nn.Module.register_forward_pre_hook(module, enter, with_kwargs=True)
        )
        self.handles.append(nn.Module.register_forward_hook(module, leave))

    def remove(self) -> None:
        """Removes all hooks."""
        for handle in self.handles:
            handle.remove()


def _code_of(module: nn.Module) -> Any:
    """Returns the code of a module's forward; None for what the check put there.

    A script that is started again makes its classes anew.
    """
    forward = getattr(module.forward, "__func__", module.forward)
    code = getattr(forward, "__code__", forward)
    file = getattr(code, "co_filename", "")
    return None if code_origin.inside_own(file) else code


def hooked(model: nn.Module) -> dict[str, nn.Module]:
    """Returns the modules that `Hooks` attaches to, by name."""
    short = shortener(model)
    return {
        short(path): module
        for path, module in contents.named_modules(model)
        if not isinstance(module, PlainWrapper)
    }


def key_of(name: str, call: int, path: str) -> str:
    """Returns the key of a tensor of a module call."""
    return f"{name}#{call}/{path}"


def paths_of(keys: Iterable[str]) -> set[str]:
    """Returns the paths in these keys."""
    return {key.rpartition("/")[2] for key in keys}


def module_of(key: str) -> str:
    """Returns the module in a key, "" for the model itself."""
    return key.rpartition("#")[0]


def tensors_of(value: Any) -> list[tuple[str, Tensor]]:
    """Returns the tensors of nested values with their paths.

    A PackedSequence is left out: its rows are time steps of several samples.
    """
    found = tree.tensors(value, skip=(PackedSequence,))
    return [(path or "output", t) for path, t in found]
