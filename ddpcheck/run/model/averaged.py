"""Data parallelism without DDP's reducer: gradients are all-reduced explicitly.

The target builds its wrapper, which may broadcast weights, freeze or replace modules.
Then every DistributedDataParallel in it is replaced by a `PlainWrapper`, and after each
backward all gradients are averaged over ranks. So a run in this mode differs from the
DDP run only in the reducer.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ddpcheck.run import private
from ddpcheck.run.model import contents
from ddpcheck.run.process import graphs
from ddpcheck.run.process.replacing import replaced

# On a DDP object: the names of the attributes that its constructor gave it.
AS_BUILT = "_ddpcheck_as_built"
# On a DDP object that a script has in its variables: it is replaced in place.
IS_HELD = "_ddpcheck_is_held"
_BUCKET = 1 << 20  # elements that are copied and reduced together


def _nothing(*_: Any) -> None:
    pass


class _IdleReducer:
    """Takes what libraries tell the reducer that a backward follows, as Lightning."""

    def prepare_for_backward(self, *_: Any) -> None:
        """Does nothing: gradients are averaged later."""

    def _rebuild_buckets(self) -> bool:
        return False


class PlainWrapper(nn.Module):
    """Replaces a DDP object: `.module`, `no_sync()`, buffer broadcast.

    `isinstance(model, DistributedDataParallel)` is true, as training code unwraps by
    it; `is_ddp` distinguishes the two.
    """

    before_forward: ClassVar[Callable[[PlainWrapper], None]] = staticmethod(_nothing)
    after_forward: ClassVar[Callable[[PlainWrapper, Any], None]] = staticmethod(
        _nothing
    )
    reducer: ClassVar[_IdleReducer] = _IdleReducer()

    def __init__(self, ddp: DistributedDataParallel) -> None:
        super().__init__()
        self.module: nn.Module = ddp.module
        self.broadcasts_buffers = bool(ddp.broadcast_buffers)
        self.stands_for = type(ddp)
        # Its settings, and attributes set on it since; not its reducer.
        held = vars(ddp)
        hung = held.keys() - held.get(AS_BUILT, held) - {AS_BUILT}
        for name in {n for n in held if _is_setting(n, held[n])} | hung:
            vars(self).setdefault(name, held[name])
        self.require_backward_grad_sync = True

    def __getattr__(self, name: str) -> Any:
        """Returns attributes that a user's subclass of DDP adds."""
        own = self.__dict__.get("stands_for", DistributedDataParallel)
        kinds = own.__mro__[: own.__mro__.index(DistributedDataParallel)]
        for kind in kinds:
            if name in vars(kind):
                found = vars(kind)[name]
                return found.__get__(self, own) if hasattr(found, "__get__") else found
        inner = self.__dict__.get("_modules", {}).get("module")
        hands_on = any("__getattr__" in vars(kind) for kind in kinds)
        if hands_on and inner is not None and hasattr(inner, name):
            return getattr(inner, name)
        return super().__getattr__(name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class that isinstance also reads."""
        return DistributedDataParallel

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Broadcasts rank 0's buffers, then returns the module's output.

        Not where the group is hidden: then this rank is alone.
        """
        PlainWrapper.before_forward(self)
        trains = self.training and torch.is_grad_enabled()
        if self.broadcasts_buffers and trains and dist.is_initialized():
            broadcast_buffers(self.module)
        output = self.module(*args, **kwargs)
        PlainWrapper.after_forward(self, output)
        return output

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """As in DDP; averaging after each backward gives the same result."""
        with replaced(self, require_backward_grad_sync=False):
            yield

    @contextlib.contextmanager
    def join(self, *_: Any, **__: Any) -> Iterator[None]:
        """As in DDP if all ranks have the same number of steps."""
        yield

    def register_comm_hook(self, *_: Any, **__: Any) -> None:
        """Does nothing, as there are no buckets."""

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        return {}


def _is_setting(name: str, value: Any) -> bool:
    """Returns whether training code may read or set it: `find_unused_parameters`."""
    plain = bool | int | float | str | torch.device | None
    return not name.startswith("_") and name != "training" and isinstance(value, plain)


def is_ddp(model: Any) -> bool:
    """Returns whether the model is a real DDP object, no `PlainWrapper`."""
    return issubclass(type(model), DistributedDataParallel)


def broadcast_buffers(module: nn.Module) -> None:
    """Broadcasts the buffers of rank 0 to all ranks."""
    with torch.no_grad():
        for buffer in contents.buffers(module):
            dist.broadcast(buffer, 0)


def replace_ddp(model: nn.Module) -> nn.Module:
    """Returns the wrapped model with every DDP object replaced, in place below it."""
    return contents.replace(model, is_ddp, _plain)


def _plain(ddp: DistributedDataParallel) -> nn.Module:
    plain = PlainWrapper(ddp)
    if IS_HELD not in vars(ddp):
        return plain
    # Its reducer goes, with the hooks on gradients; what was observed names its group.
    vars(plain).setdefault("process_group", ddp.process_group)
    become(ddp, plain)
    return ddp


def become(module: nn.Module, other: nn.Module) -> None:
    """Makes a module the same as another, wherever it is referred to."""
    module.__dict__ = other.__dict__
    module.__class__ = type(other)


@contextlib.contextmanager
def averaging(
    parameters: Callable[[], dict[str, Tensor]], unused: Callable[[], dict[str, bool]]
) -> Iterator[None]:
    """Averages all gradients over ranks after each outermost backward.

    Both functions are called at that moment. `unused` collects the parameters that no
    backward has reached when the optimizer steps, or when their wrapper is called again
    after a backward: DDP would have waited for them. True: an output depends on them.

    Averaging twice changes nothing, so gradients accumulated over several backwards are
    right. Gradients that user code assigns after `torch.autograd.grad` are averaged
    before the optimizer steps.
    """
    outermost = _Averaging(parameters, unused)
    run = functools.partial(outermost.run, torch.autograd.backward)
    with (
        replaced(torch.autograd, backward=run),
        replaced(
            PlainWrapper,
            before_forward=staticmethod(outermost.before_forward),
            after_forward=staticmethod(outermost.window.after_forward),
        ),
        register_optimizer_step_pre_hook(outermost.before_update),
        register_optimizer_step_post_hook(outermost.after_update),
    ):
        yield


class _Averaging:
    """Averages after the outermost backward and before the outermost update."""

    def __init__(
        self,
        parameters: Callable[[], dict[str, Tensor]],
        unused: Callable[[], dict[str, bool]],
    ) -> None:
        self.window = Window()
        self._parameters, self._unused = parameters, unused
        self._depth = 0
        self._updates = 0  # begun and not ended: an optimizer may call another

    def run(self, backward: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Runs a backward; averages after the outermost."""
        before: Gradients = {} if self._depth else gradients(self._parameters())
        self._depth += 1
        try:
            backward(*args, **kwargs)
        finally:
            self._depth -= 1
        if self._depth == 0:
            self.window.after_backward(before, self._parameters())
            average(self._parameters())

    def before_forward(self, wrapper: PlainWrapper) -> None:
        """Notes the parameters unused since the wrapper's last call."""
        found = self.window.before_forward(wrapper, self._parameters())
        self._unused().update(found)

    def before_update(self, *_: Any) -> None:
        """Averages before the outermost update."""
        self._updates += 1
        self._unused().update(self.window.take(self._parameters()))
        if self._updates == 1:
            average(self._parameters())

    def after_update(self, *_: Any) -> None:
        """Ends an update."""
        self._updates -= 1


def average(parameters: Mapping[str, Tensor]) -> None:
    """Replaces every gradient by its mean over ranks; None counts as zero.

    A parameter without gradient on any rank keeps None.
    """
    names = sorted(parameters)
    has = torch.tensor([float(parameters[n].grad is not None) for n in names])
    dist.all_reduce(has, dist.ReduceOp.MAX)
    gradients = []
    for name, any_rank in zip(names, has.tolist(), strict=True):
        parameter = parameters[name]
        if not any_rank:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradients.append(_as_dense(parameter))
    for bucket in _buckets(gradients):
        _mean(bucket)


def _as_dense(parameter: Tensor) -> Tensor:
    """Returns the parameter's gradient, real and dense, as gloo requires."""
    grad = parameter.grad
    assert grad is not None
    if grad.is_sparse:
        parameter.grad = grad = grad.to_dense()
    grad = grad.detach()
    return torch.view_as_real(grad) if grad.is_complex() else grad


def _buckets(gradients: list[Tensor]) -> Iterator[list[Tensor]]:
    """Yields neighbours of one dtype and device, as a collective takes a millisecond.

    All ranks form the same buckets: devices change at the same parameters.
    """
    bucket: list[Tensor] = []
    for gradient in gradients:
        size = sum(g.numel() for g in bucket) + gradient.numel()
        is_kin = {(g.dtype, g.device) for g in bucket} <= {
            (gradient.dtype, gradient.device)
        }
        if bucket and not (is_kin and size <= _BUCKET):
            yield bucket
            bucket = []
        bucket.append(gradient)
    if bucket:
        yield bucket


def _mean(bucket: list[Tensor]) -> None:
    if len(bucket) == 1 and bucket[0].is_contiguous():
        flat = bucket[0]
    else:
        flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    if flat is bucket[0]:
        return
    parts = flat.split([gradient.numel() for gradient in bucket])
    for gradient, part in zip(bucket, parts, strict=True):
        gradient.copy_(part.view(gradient.shape))


Gradients = dict[str, tuple[Tensor, int]]  # with version counters


class _Wrapper(Protocol):
    require_backward_grad_sync: bool

    def parameters(self) -> Iterable[Tensor]: ...


def gradients(parameters: Mapping[str, Tensor]) -> Gradients:
    """Returns the gradients that are not None."""
    grads = {name: p.grad for name, p in parameters.items()}
    return {n: (g, private.version(g)) for n, g in grads.items() if g is not None}


@dataclass(slots=True)
class Window:
    """Parameters that no backward has reached yet, while DDP waits for them."""

    unreached: dict[str, bool] = field(default_factory=dict)
    # Wrappers called since the last backward, and before it; True: outside no_sync.
    called: dict[int, bool] = field(default_factory=dict)
    waited: dict[int, bool] = field(default_factory=dict)
    # Outputs of wrappers since their parameters were taken.
    outputs: dict[int, list[Tensor]] = field(default_factory=dict)

    def before_forward(
        self, wrapper: _Wrapper, parameters: Mapping[str, Tensor]
    ) -> dict[str, bool]:
        """Returns the unreached parameters of a wrapper that is called again.

        As `take` does. In no_sync DDP does not wait, and starts again after it.
        """
        found: dict[str, bool] = {}
        if id(wrapper) in self.waited:
            own = {id(p) for p in wrapper.parameters()}
            mine = {n: p for n, p in parameters.items() if id(p) in own}
            found = self._taken(mine, self.outputs.pop(id(wrapper), []))
        has_waited = self.waited.pop(id(wrapper), False)
        self.called[id(wrapper)] = wrapper.require_backward_grad_sync
        return found if has_waited else {}

    def after_forward(self, wrapper: _Wrapper, output: Any) -> None:
        """Keeps the output, to find the leaves of its graph."""
        tensors = (t for t in private.leaves(output) if isinstance(t, Tensor))
        outputs = self.outputs.setdefault(id(wrapper), [])
        outputs += [t for t in tensors if t.requires_grad]

    def after_backward(
        self, before: Gradients, parameters: Mapping[str, Tensor]
    ) -> None:
        """Notes the parameters whose gradients were written."""
        after = gradients(parameters)
        for name, p in parameters.items():
            is_left_out = p.requires_grad and not _is_written(before, after, name)
            self.unreached[name] = self.unreached.get(name, True) and is_left_out
        self.waited |= self.called
        self.called.clear()

    def take(self, parameters: Mapping[str, Tensor]) -> dict[str, bool]:
        """Returns the unreached among these parameters, and resets them.

        True: an output depends on the parameter.
        """
        outputs = [t for held in self.outputs.values() for t in held]
        self.outputs.clear()
        return self._taken(parameters, outputs)

    def _taken(
        self, parameters: Mapping[str, Tensor], outputs: list[Tensor]
    ) -> dict[str, bool]:
        names = [n for n in parameters if self.unreached.pop(n, False)]
        behind = leaves(outputs) if names else {}
        return {n: id(parameters[n]) in behind for n in names}


def _is_written(before: Gradients, after: Gradients, name: str) -> bool:
    if name not in after:
        return False
    if name not in before or not private.COUNTS_VERSIONS:
        return True
    (old, times), (new, now) = before[name], after[name]
    return new is not old or now > times


def leaves(outputs: Iterable[Tensor]) -> dict[int, Tensor]:
    """Returns the leaves on which outputs depend, by their ids."""
    given = list(outputs)
    found = {id(t): t for t in given if t.grad_fn is None}
    for node in graphs.nodes(t.grad_fn for t in given):
        variable = getattr(node, "variable", None)
        if variable is not None:
            found[id(variable)] = variable
    return found
