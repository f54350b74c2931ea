"""What a module is like, from its own forward: what it keeps, what it normalises."""

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

_INVARIANT = 0.05  # the norm's epsilon beside a small variance
_SOME_ROWS = 256  # that are looked up in tables
_ROUNDING = 1e-6
_SECANTS = 4  # a linear rule is hit by the third


def versions(
    module: nn.Module, silent: Iterable[nn.Module] = ()
) -> tuple[list[tuple[int, float]], list[float]]:
    """Returns what changes when the module's own buffers and parameters are written.

    And the parameters of its `silent` parts, which run as what it does.
    """
    return (
        versions_of_buffers(module),
        # Not versions: writing to `.data` does not count.
        [
            total
            for part in (module, *silent)
            for _, p in contents.own_parameters(part)
            for total in (_sum(p), _bounded_sum(p))
        ],
    )


def versions_of_buffers(module: nn.Module) -> list[tuple[int, float]]:
    """Returns what changes when the module's own buffers are written.

    Both: a buffer may be written over with the same, or be another tensor.
    """
    return [(private.version(b), _sum(b)) for b in module.buffers(recurse=False)]


def silent_parts(
    model: nn.Module, called: Container[str]
) -> dict[str, list[nn.Module]]:
    """Returns parts that are used and not called, by the innermost one around them.

    A flow's `inverse` and an encoder's `encode` run no hooks. `called`: names of the
    modules that are called.
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
        value = value.double()  # booleans have no size
    return float(value.abs().double().nan_to_num().sum())


def _bounded_sum(tensor: Tensor) -> float:
    """Returns a sum that no single element decides, as one of 1e6 does the other."""
    size = tensor.detach().abs().double()
    return float((size / (1 + size)).nan_to_num().sum())


def is_scale_invariant(module: nn.Module, args: Any, kwargs: Any) -> bool:
    """Returns whether twice the input gives the same output: it normalises.

    All samples together: not where twice some of them gives the same as well, as it
    does with directions of vectors.

    Up to the epsilon of the norm. Where outputs have the shape of an input, these are
    judged: a flow's norm returns the log-determinant beside. A scalar is no output of a
    norm: losses of directions do not change with scale, either. Buffers are put back.
    """
    inputs = [t for t in tree.held((args, kwargs)) if t.is_floating_point()]
    if not any(bool(t.any()) for t in inputs):
        return False  # of what cannot be scaled nothing is known
    given = args, kwargs
    # Both, whatever the first says: one that communicates is called alike on all ranks.
    by_all = _is_unchanged(module, given, lambda t: t * 2)
    has_some = all(t.dim() and len(t) > 1 for t in inputs)
    by_some = has_some and _is_unchanged(module, given, _with_some_doubled)
    return by_all and not by_some


def _with_some_doubled(tensor: Tensor) -> Tensor:
    """Returns it with every third row twice: some of any group of neighbours."""
    changed = tensor.clone()
    changed[::3] *= 2
    return changed


def _is_unchanged(
    module: nn.Module, given: tuple[Any, Any], change: Callable[[Tensor], Tensor]
) -> bool:
    """Returns whether a module gives the same with its inputs changed."""
    args, kwargs = given
    changed = tree.replace(
        given, lambda _, t: change(t) if t.is_floating_point() else t
    )
    with _as_before(module):
        try:
            with torch.no_grad():
                once = tensors_of(module.forward(*args, **kwargs))
                both = tensors_of(module.forward(*changed[0], **changed[1]))
        except Exception:  # noqa: BLE001 (a module may refuse changed inputs)
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
    """Returns whether a module that writes buffers does so as a norm does.

    `is_invariant`: twice the input gives the same output.
    """
    is_across = is_invariant or has_slope_across(module, args, kwargs)
    return is_across and not looks_up(module, args, kwargs)


def looks_up(module: nn.Module, args: Any, kwargs: Any) -> bool:
    """Returns whether an output's rows are rows of a table that the module keeps.

    A bank of neighbours and a code book are no norm, though what they find may not
    change with the input's scale. Rows as they were before or are after the forward,
    up to rounding, as a straight-through gradient has it; buffers are put back. In an
    image a row is what its channels have at one place.
    """
    before = _tables(module)
    with _as_before(module):
        try:
            with torch.no_grad():
                made = tensors_of(module.forward(*args, **kwargs))
        except Exception:  # noqa: BLE001 (a module may refuse a second call)
            return False
        tables = before + _tables(module)
    some = [
        output
        for _, output in made
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
    """Returns whether the gradient at the input is at right angles to the input.

    So it is where the input's scale is not in the output (Euler's theorem), also where
    running statistics, taken as constants, bring a scale back. One input is judged by
    one output of its shape, and the gradient there is that output at random positive
    weights: what grows with the input is far from right angles then, however many
    elements there are. Buffers are put back.
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
        # By numpy: no draw of the step's.
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


@contextlib.contextmanager
def _as_before(module: nn.Module) -> Iterator[None]:
    """Lets a forward write into copies of the buffers; puts the random state back.

    Not into the buffers: the graph of the step may have saved them for its backward.
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
                if private.version(buffer) != versions[id(buffer)]:  # by another name
                    buffer.copy_(before[id(buffer)])


@contextlib.contextmanager
def _replaced(module: nn.Module, others: dict[int, Tensor]) -> Iterator[None]:
    """Puts other tensors in the places of buffers, by their ids."""
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
    """Returns whether the module's own buffers are these, where they are known."""
    mine = dict(contents.own_buffers(module))
    return all(
        other is None or distance(mine[name], other) <= SAME
        for name, other in buffers.items()
    )


def evaluated(
    module: nn.Module, args: Any, kwargs: Any, buffers: dict[str, Tensor | None]
) -> list[tuple[str, Tensor]] | None:
    """Returns the outputs in evaluation with other buffers, which are put back.

    Its parts go on training. None where a buffer is None or forward raises.
    """
    if any(b is None for b in buffers.values()):
        return None
    training = module.training
    with _as_before(module):
        copies = dict(contents.own_buffers(module))
        others = {id(b): buffers[n].to(b, copy=True) for n, b in copies.items()}  # type: ignore[union-attr]
        try:
            with torch.no_grad(), _replaced(module, others):
                module.training = False
                return tensors_of(module.forward(*args, **kwargs))
        except Exception:  # noqa: BLE001 (a forward that is for training alone)
            return None
        finally:
            module.training = training


def arriving(
    module: nn.Module, args: Any, kwargs: Any, buffers: dict[str, Tensor | None]
) -> list[tuple[str, Tensor]] | None:
    """Returns the outputs of a forward that leaves these buffers, which are put back.

    It adds the own rows' part to some, or mixes it in: where it has to begin follows
    from where it arrives, by the secant. None where it arrives elsewhere.
    """
    wanted = {n: b.to(torch.float64) for n, b in buffers.items() if b is not None}
    if len(wanted) < len(buffers):
        return None
    begin, last = dict(wanted), None
    with _as_before(module):
        for _ in range(_SECANTS):
            told = _trained_from(module, args, kwargs, begin)
            if told is None:
                return None
            outputs, after = told
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
    """Returns how far a buffer's end moves with its beginning, 1 where unknown."""
    if last is None:
        return torch.ones_like(begin)
    found = (after - last[1][name]) / (begin - last[0][name])
    return torch.where(found.isfinite() & (found != 0), found, 1.0)


def _trained_from(
    module: nn.Module, args: Any, kwargs: Any, begin: dict[str, Tensor]
) -> tuple[list[tuple[str, Tensor]], dict[str, Tensor]] | None:
    """Returns a forward's outputs and the buffers it leaves, from where it begins."""
    own = dict(contents.own_buffers(module))
    others = {id(b): begin[n].to(b.dtype) for n, b in own.items()}
    try:
        with torch.no_grad(), _replaced(module, others):
            outputs = tensors_of(module.forward(*args, **kwargs))
            left = dict(contents.own_buffers(module))
            return outputs, {n: left[n].to(torch.float64) for n in own}
    except Exception:  # noqa: BLE001 (a forward that knows such buffers not)
        return None
