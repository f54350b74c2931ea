"""Properties of a module, found by calling its forward: state, normalisation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ddpcheck.compare import tree
from ddpcheck.diagnose.probes.hooks import tensors_of
from ddpcheck.diagnose.probes.rows import SAME, distance
from ddpcheck.run import private
from ddpcheck.run.model import contents
from ddpcheck.run.model.names import shortener

# Largest relative change of an output that counts as invariant: a norm adds an epsilon
# to the variance, which may be small.
_INVARIANT = 0.05
_SOME_ROWS = 256  # of an output are searched for in tables
_ROUNDING = 1e-6
_SECANTS = 4  # forwards; the third is exact for a linear update


def versions(
    module: nn.Module, silent: Iterable[nn.Module] = ()
) -> tuple[list[tuple[int, float]], list[float]]:
    """Returns numbers that change when own buffers, or own parameters, are written.

    `silent`: parts that run without hooks; their parameters count as the module's own.
    """
    return (
        versions_of_buffers(module),
        # Sums, since a write to `.data` does not change the version.
        [
            total
            for part in (module, *silent)
            for _, p in contents.own_parameters(part)
            for total in (_sum(p), _bounded_sum(p))
        ],
    )


def versions_of_buffers(module: nn.Module) -> list[tuple[int, float]]:
    """Returns numbers that change when the module's own buffers are written.

    The version changes if equal values are written, the sum if the tensor is replaced.
    """
    return [(private.version(b), _sum(b)) for b in module.buffers(recurse=False)]


def silent_parts(
    model: nn.Module, called: Container[str]
) -> dict[str, list[nn.Module]]:
    """Returns the parts that no hook sees, by the innermost called module around them.

    The `inverse` of a flow and the `encode` of an encoder run no hooks. `called`: names
    of the modules that are called.
    """
    found: dict[str, list[nn.Module]] = {}
    short = shortener(model)
    for path, part in contents.named_modules(model):
        name = short(path)
        if not name or name in called:
            continue
        outer = name.rpartition(".")[0]
        while outer and outer not in called:
            outer = outer.rpartition(".")[0]
        found.setdefault(outer, []).append(part)
    return found


def _sum(tensor: Tensor) -> float:
    value = tensor.detach()
    if not value.is_complex():
        value = value.double()  # abs() does not take booleans
    return float(value.abs().double().nan_to_num().sum())


def _bounded_sum(tensor: Tensor) -> float:
    """Returns a sum in which no single large element hides the others."""
    size = tensor.detach().abs().double()
    return float((size / (1 + size)).nan_to_num().sum())


def is_scale_invariant(module: nn.Module, args: Any, kwargs: Any) -> bool:
    """Returns whether the output stays if all inputs are doubled, as with a norm.

    Not if it also stays when only some samples are doubled: a module that uses the
    directions of vectors does not normalise over samples. The output may change by the
    epsilon of the norm. Only outputs with an input's shape count, if there are any: a
    flow's norm also returns a log-determinant. A scalar does not count, since losses of
    directions do not change with scale either. Buffers are put back.
    """
    inputs = [t for t in tree.held((args, kwargs)) if t.is_floating_point()]
    if not any(bool(t.any()) for t in inputs):
        return False  # scaling changes nothing
    given = args, kwargs
    # Always both: a module that calls collectives is called equally often on all ranks.
    by_all = _is_unchanged(module, given, lambda t: t * 2)
    has_some = all(t.dim() and len(t) > 1 for t in inputs)
    by_some = has_some and _is_unchanged(module, given, _with_some_doubled)
    return by_all and not by_some


def _with_some_doubled(tensor: Tensor) -> Tensor:
    """Doubles every third row: some rows of any group of neighbours."""
    changed = tensor.clone()
    changed[::3] *= 2
    return changed


def _is_unchanged(
    module: nn.Module, given: tuple[Any, Any], change: Callable[[Tensor], Tensor]
) -> bool:
    """Returns whether a module's outputs stay when its inputs are changed."""
    args, kwargs = given
    changed = tree.replace(
        given, lambda _, t: change(t) if t.is_floating_point() else t
    )
    with _as_before(module):
        once = _forward(module, args, kwargs)
        both = None if once is None else _forward(module, *changed)
    if once is None or both is None:
        return False
    shapes = {t.shape for t in tree.held(given)}
    pairs = [(a, b) for (_, a), (_, b) in zip(once, both, strict=False)]
    pairs = [(a, b) for a, b in pairs if a.dim()]
    alike = [(a, b) for a, b in pairs if a.shape in shapes] or pairs
    return bool(alike) and all(
        a.shape == b.shape and distance(b, a) < _INVARIANT for a, b in alike
    )


def is_norm_like(
    module: nn.Module, args: Any, kwargs: Any, *, is_invariant: bool
) -> bool:
    """Returns whether a module that writes buffers behaves as a norm.

    `is_invariant`: the result of `is_scale_invariant`.
    """
    is_across = is_invariant or has_slope_across(module, args, kwargs)
    return is_across and not looks_up(module, args, kwargs)


def looks_up(module: nn.Module, args: Any, kwargs: Any) -> bool:
    """Returns whether the rows of an output are rows of a table that the module keeps.

    A memory bank and a code book are no norms, though their outputs may not change with
    the input's scale. The table is read before and after the forward. Rows are equal up
    to rounding, as a straight-through gradient adds and subtracts the input. In an
    image, a row is the channels at one place. Buffers are put back.
    """
    before = _tables(module)
    with _as_before(module):
        made = _forward(module, args, kwargs)
        tables = before + _tables(module)
    some = [
        output
        for _, output in made or ()
        if output.is_floating_point() and output.dim() > 1 and output.numel()
    ]
    some += [output.movedim(1, -1) for output in some if output.dim() > 2]  # noqa: PLR2004
    return any(_are_rows_of(output, table) for output in some for table in tables)


def _tables(module: nn.Module) -> list[Tensor]:
    parts = [m for _, m in contents.own_modules(module) if isinstance(m, nn.Embedding)]
    own = [
        *(buffer for _, buffer in contents.own_buffers(module)),
        *(p for part in (module, *parts) for _, p in contents.own_parameters(part)),
    ]
    two = [t.detach().clone() for t in own if t.is_floating_point() and t.dim() == 2]  # noqa: PLR2004
    return [t for table in two for t in (table, table.T) if len(t) > 1]


def _are_rows_of(output: Tensor, table: Tensor) -> bool:
    if output.shape[-1] != table.shape[-1]:
        return False
    rows = output.detach().double().reshape(-1, output.shape[-1])[:_SOME_ROWS]
    apart = torch.cdist(rows, table.to(rows)).amin(1)
    return bool((apart <= _ROUNDING * rows.norm(dim=1).clamp_min(1e-12)).all())


def has_slope_across(module: nn.Module, args: Any, kwargs: Any) -> bool:
    """Returns whether the gradient at the input is orthogonal to the input.

    This holds if the output does not depend on the input's scale (Euler's theorem), or
    if only running statistics, which are constants here, bring a scale back. The module
    needs one input and one output of the same shape. The gradient is that of the
    weighted sum of squares of the output, with random positive weights: if the output
    grows with the input, this is far from orthogonal, however many elements there are.
    Buffers are put back.
    """
    inputs: list[Tensor] = []

    def leaf(_: str, t: Tensor) -> Tensor:
        if not t.is_floating_point():
            return t
        inputs.append(t.detach().clone().requires_grad_())
        return inputs[-1]

    args, kwargs = tree.replace((args, kwargs), leaf)
    if len(inputs) != 1:
        return False
    (x,) = inputs
    with _as_before(module), torch.enable_grad():
        # From numpy, so that the random state of torch stays.
        drawn = np.random.default_rng(0).random(x.shape)
        weights = 0.5 + torch.from_numpy(drawn).to(x)
        try:
            outputs = [t for _, t in tensors_of(module.forward(*args, **kwargs))]
            (y,) = (t for t in outputs if t.shape == x.shape)
            (slope,) = torch.autograd.grad(y, x, weights * y.detach())
        except Exception:  # noqa: BLE001 (two outputs of that shape, or one without graph)
            return False
    x, size = x.detach(), float(slope.norm() * x.detach().norm())
    return size > 0 and abs(float((slope * x).sum())) < _INVARIANT * size


def _forward(
    module: nn.Module, args: Any, kwargs: Any
) -> list[tuple[str, Tensor]] | None:
    """Returns the outputs of a forward without a graph, None if forward raises."""
    try:
        with torch.no_grad():
            return tensors_of(module.forward(*args, **kwargs))
    except Exception:  # noqa: BLE001 (a module may refuse other inputs or buffers)
        return None


@contextlib.contextmanager
def _as_before(module: nn.Module) -> Iterator[None]:
    """Replaces buffers by copies for a forward; puts the random state back.

    The buffers themselves must not be written: the graph of the step may have saved
    them for backward.
    """
    before = {id(b): b.clone() for b in contents.buffers(module)}
    versions = {id(b): private.version(b) for b in contents.buffers(module)}
    state = torch.get_rng_state()
    try:
        with _replaced(module, {key: b.clone() for key, b in before.items()}):
            yield
    finally:
        torch.set_rng_state(state)
        with torch.no_grad():
            for buffer in contents.buffers(module):
                if (
                    private.version(buffer) != versions[id(buffer)]
                ):  # through another name
                    buffer.copy_(before[id(buffer)])


@contextlib.contextmanager
def _replaced(module: nn.Module, others: dict[int, Tensor]) -> Iterator[None]:
    """Replaces buffers by other tensors, given by the ids of the buffers."""
    places = [
        (part, name, buffer)
        for part in contents.modules(module)
        for name, buffer in contents.own_buffers(part)
        if id(buffer) in others
    ]
    try:
        for part, name, buffer in places:
            setattr(part, name, others[id(buffer)])
        yield
    finally:
        for part, name, buffer in places:
            setattr(part, name, buffer)


def has_buffers(module: nn.Module, buffers: dict[str, Tensor | None]) -> bool:
    """Returns whether the module's own buffers equal these; None is not compared."""
    mine = dict(contents.own_buffers(module))
    return all(
        other is None or distance(mine[name], other) <= SAME
        for name, other in buffers.items()
    )


def evaluated(
    module: nn.Module, args: Any, kwargs: Any, buffers: dict[str, Tensor | None]
) -> list[tuple[str, Tensor]] | None:
    """Returns the outputs in evaluation mode with these buffers.

    The parts of the module stay in training mode, and its buffers are put back. None if
    a buffer is None, or if forward raises.
    """
    if any(b is None for b in buffers.values()):
        return None
    training = module.training
    with _as_before(module):
        copies = dict(contents.own_buffers(module))
        try:
            others = {id(b): buffers[n].to(b, copy=True) for n, b in copies.items()}  # type: ignore[union-attr]
            with _replaced(module, others):
                module.training = False
                return _forward(module, args, kwargs)
        finally:
            module.training = training


def arriving(
    module: nn.Module, args: Any, kwargs: Any, buffers: dict[str, Tensor | None]
) -> list[tuple[str, Tensor]] | None:
    """Returns the outputs of a forward after which the buffers equal these.

    Forward updates buffers from its own rows. The buffers before it are found by the
    secant method. The module's buffers are put back. None if no buffers are found.
    """
    wanted = {n: b.to(torch.float64) for n, b in buffers.items() if b is not None}
    if len(wanted) < len(buffers):
        return None
    begin, last = dict(wanted), None
    with _as_before(module):
        for _ in range(_SECANTS):
            made = _updated_from(module, args, kwargs, begin)
            if made is None:
                return None
            outputs, after = made
            if all(distance(after[n], wanted[n]) <= SAME for n in wanted):
                return outputs
            slopes = {n: _slope(begin[n], after[n], n, last) for n in wanted}
            last = begin, after
            begin = {n: begin[n] + (wanted[n] - after[n]) / slopes[n] for n in wanted}
    return None


def _slope(
    begin: Tensor,
    after: Tensor,
    name: str,
    last: tuple[dict[str, Tensor], dict[str, Tensor]] | None,
) -> Tensor:
    """Returns d (buffer after forward) / d (buffer before), 1 if unknown."""
    if last is None:
        return torch.ones_like(begin)
    found = (after - last[1][name]) / (begin - last[0][name])
    return torch.where(found.isfinite() & (found != 0), found, 1.0)


def _updated_from(
    module: nn.Module, args: Any, kwargs: Any, begin: dict[str, Tensor]
) -> tuple[list[tuple[str, Tensor]], dict[str, Tensor]] | None:
    """Returns the outputs, and the buffers after forward, given those before."""
    own = dict(contents.own_buffers(module))
    others = {id(b): begin[n].to(b.dtype) for n, b in own.items()}
    with _replaced(module, others):
        outputs = _forward(module, args, kwargs)
        left = dict(contents.own_buffers(module))
    if outputs is None or not own.keys() <= left.keys():
        return None
    return outputs, {n: left[n].to(torch.float64) for n in own}
