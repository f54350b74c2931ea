"""Random operations: their draws, and the same draws for other numbers of samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_RANDOM = torch.Tag.nondeterministic_seeded
# Arguments of operations of many steps, as attention and recurrent layers are.
_DROPOUT_INSIDE = ("dropout_p", "dropout")
# How much they draw for an element follows from its value, for some by rejection.
_OF_VALUES = ("binomial", "poisson", "standard_gamma", "sample_dirichlet")

Shape = tuple[int, ...]


class NoiseMismatchError(RuntimeError):
    """A rank draws other random numbers than the reference: no equality defined."""


def is_random(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Returns whether an operation draws numbers.

    Not attention or a recurrent layer without dropout, which torch marks as random too,
    nor a backward, which reuses the draws of its forward.
    """
    if _RANDOM not in func.tags or name_of(func).endswith("backward"):
        return False
    return _dropout_inside(func, args, kwargs) != 0


def draws_inside(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Returns whether an operation draws internally, as attention with dropout does.

    The rows of these draws cannot be assigned to samples.
    """
    return bool(_dropout_inside(func, args, kwargs))


def _dropout_inside(func: Any, args: Any, kwargs: dict[str, Any]) -> float | None:
    """Returns the probability of dropout inside of an operation, None for no such."""
    schema = getattr(func, "_schema", None)
    for place, argument in enumerate(getattr(schema, "arguments", ())):
        if argument.name in _DROPOUT_INSIDE:
            given = args[place] if place < len(args) else argument.default_value
            return float(kwargs.get(argument.name, given))
    return None


def is_own_draw(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Returns whether an operation draws numbers with an explicit generator.

    Permutations are excluded, as their elements do not belong to samples.
    """
    is_drawn = _RANDOM in func.tags and has_generator(args, kwargs)
    return is_drawn and not is_permutation(func)


def seeds(args: Any, kwargs: dict[str, Any]) -> set[int]:
    """Returns the seeds of the explicit generators that an operation is given."""
    given = [*args, kwargs.get("generator")]
    return {g.initial_seed() for g in given if isinstance(g, torch.Generator)}


def has_generator(args: Any, kwargs: dict[str, Any]) -> bool:
    """Returns whether a generator is given, by position or by name."""
    given = [*args, kwargs.get("generator")]
    return any(isinstance(value, torch.Generator) for value in given)


def is_permutation(func: Any) -> bool:
    """Returns whether an operation draws a permutation."""
    return name_of(func) == "randperm"


def is_of_values(func: Any) -> bool:
    """Returns whether the number of draws of an operation depends on values."""
    return name_of(func).lstrip("_") in _OF_VALUES


def even(func: Any) -> Any:
    """Returns an operation that draws for every element, whatever its sign."""
    return {"rrelu_with_noise": _rrelu, "rrelu_with_noise_": _rrelu_}.get(
        name_of(func), func
    )


def _rrelu(
    x: Tensor,
    noise: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,  # noqa: FBT001, FBT002 (the operation's own arguments)
) -> Tensor:
    """As aten.rrelu_with_noise, whose CPU kernel draws only for x <= 0."""
    if not training:
        return torch.where(x > 0, x, x * ((lower + upper) / 2))
    slopes = torch.empty_like(x).uniform_(lower, upper)
    noise.copy_(torch.where(x > 0, 1.0, slopes))
    return x * noise


def _rrelu_(x: Tensor, *args: Any) -> Tensor:
    return x.copy_(_rrelu(x, *args))


def is_uneven(func: Any, args: Any, total: int) -> bool:
    """Returns whether the draws of a sample depend on the values of others."""
    return is_of_values(func) and any(_is_uneven(a, total) for a in args)


def _is_uneven(value: Any, total: int) -> bool:
    if not isinstance(value, Tensor):
        return False
    dims = [d for d, size in enumerate(value.shape) if size and not size % total]
    return bool(dims) and not any(
        torch.equal(value, value.narrow(d, 0, 1).expand_as(value)) for d in dims
    )


def name_of(func: Any) -> str:
    """Returns "normal_" for the operation aten.normal_.default."""
    return str(func.__name__).partition(".")[0]


def result_shape(func: Any, args: Any) -> Shape:
    """Returns the shape of the draw, for a multinomial the rows of the weights."""
    first = args[0] if args else ()
    if _is_of_one_row(func, args):
        return (int(args[1]),)
    if isinstance(first, Tensor):
        return tuple(first.shape)
    for arg in args:  # rand(size), randint(high, size), randint(low, high, size)
        if isinstance(arg, list | tuple):
            return tuple(int(n) for n in arg)
    return (int(first),) if isinstance(first, int) else ()


def _is_of_one_row(func: Any, args: Any) -> bool:
    """Returns whether so many indices are drawn by one row of weights."""
    return name_of(func) == "multinomial" and args[0].dim() == 1


def batch_dim(shape: Shape, whole: Shape) -> int | None:
    """Returns the one dimension in which the shapes differ."""
    if len(shape) != len(whole):
        return None
    dims = [d for d, (a, b) in enumerate(zip(shape, whole, strict=True)) if a != b]
    return dims[0] if len(dims) == 1 else None


def drawn_wide(
    func: Any, args: Any, kwargs: dict[str, Any], shape: Shape, whole: Shape, first: int
) -> Any:
    """Calls the operation for the whole batch; returns the rows from `first` on.

    In-place results are written to the same rows of the arguments.

    Raises:
        NoiseMismatchError: it draws no row for each sample.
    """
    dim = batch_dim(shape, whole)
    assert dim is not None
    wide = _widen(func, args, shape, whole, dim, first)
    drawn = func(*wide, **kwargs)

    def rows(full: Tensor) -> Tensor:
        if full.dim() <= dim or full.shape[dim] != whole[dim]:
            message = f"{name_of(func)} draws {shape} where the reference draws {whole}"
            raise NoiseMismatchError(message)
        return full.narrow(dim, first, shape[dim])

    return replaced(drawn, write_back(args, wide, rows), rows)


def write_back(
    args: Any, used: Any, rows: Callable[[Tensor], Tensor]
) -> dict[int, Tensor]:
    """Writes what an operation wrote to stand-ins for its arguments to these.

    Returns the arguments by the identities of what stood in for them.
    """
    stood_in = {}
    for arg, other in zip(args, used, strict=True):
        if isinstance(arg, Tensor) and other is not arg:
            mine = rows(other)
            if not _are_same(mine, arg):
                arg.copy_(mine)
            stood_in[id(other)] = arg
    return stood_in


def replaced(
    drawn: Any, stood_in: dict[int, Tensor], rows: Callable[[Tensor], Tensor]
) -> Any:
    """Returns the rows of the draw; returned arguments are returned themselves."""
    if not isinstance(drawn, Tensor):
        return tuple(replaced(d, stood_in, rows) for d in drawn)
    return stood_in[id(drawn)] if id(drawn) in stood_in else rows(drawn)


def _are_same(mine: Tensor, other: Tensor) -> bool:
    # What was never written may hold NaN.
    return torch.allclose(mine, other, rtol=0.0, atol=0.0, equal_nan=True)


def _widen(
    func: Any, args: Any, shape: Shape, whole: Shape, dim: int, first: int
) -> list[Any]:
    """Returns the arguments for the whole batch, this shard's rows in their place."""
    if _is_of_one_row(func, args):
        return [args[0], *whole, *args[2:]]
    wide: list[Any] = []
    for arg in args:
        if isinstance(arg, Tensor) and tuple(arg.shape) == shape:
            full = _zeros_laid_out_as(arg, whole)
            if shape[dim]:
                # Stands for rows of other ranks; zeros may not be valid parameters
                # (the probabilities of a multinomial).
                full.copy_(arg.narrow(dim, 0, 1).expand(whole))
            full.narrow(dim, first, shape[dim]).copy_(arg)
            wide.append(full)
        elif isinstance(arg, list | tuple) and tuple(arg) == shape:
            wide.append(list(whole))
        else:
            wide.append(arg)
    return wide


def _zeros_laid_out_as(tensor: Tensor, shape: Shape) -> Tensor:
    """Returns zeros whose dimensions lie in memory in the order of `tensor`'s.

    In-place random operations fill in memory order: a transposed tensor draws other
    numbers than a contiguous one.
    """
    order = sorted(range(tensor.dim()), key=lambda d: -tensor.stride(d))  # type: ignore[operator]
    back = [order.index(d) for d in range(tensor.dim())]
    return tensor.new_zeros([shape[d] for d in order]).permute(back)
