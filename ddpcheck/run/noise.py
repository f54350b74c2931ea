"""Random numbers as a function of the global sample, so that equality is defined.

In mode "sample" every random operation of a step draws, on every rank, the numbers
that one process draws for the whole batch, and keeps the rows of its own shard. The
reference notes the shapes of its draws in order; a rank's k-th draw has the shape of
the reference's k-th draw but for one dimension, the batch. Same shape: same draw on
all ranks. Draws through a `torch.Generator` of the model's own are left alone.

Only torch's random operations are handled; numpy's and Python's generators are
seeded alike everywhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ddpcheck import tree
from ddpcheck.errors import Problem, UsageError
from ddpcheck.run import private
from ddpcheck.run.fixes.names import shape_name
from ddpcheck.run.process.isolation import seed_torch

_RANDOM = torch.Tag.nondeterministic_seeded
# Held from seeding, which reaches all devices, to drawing: replicas draw in threads.
_TURN = threading.RLock()


class NoiseMismatchError(RuntimeError):
    """A rank draws other random numbers than the reference: no equality defined."""


class DrawCounter(private.DispatchMode):
    """Counts random operations; has the shapes of those with an explicit generator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0
        self.own: list[tuple[int, ...]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Calls the operation; notes whether it is random."""
        del types
        if _RANDOM in func.tags:
            self.count += 1
            if is_own_draw(func, args, kwargs or {}):
                self.own.append(_result_shape(func, args))
        return func(*args, **(kwargs or {}))


class SampleNoise(private.DispatchMode):
    """Draws for the global batch, keeps the rows of this shard.

    Args:
        seed: of the run; the draws of step s, number k are seeded by (seed, s, k).
        step: counted from 0.
        shapes: the reference's shapes in order; None in the reference, which fills
            `self.shapes`.
        start, size, total: rows of this shard, and of the whole batch.

    Raises:
        UsageError: option-value; see ddpcheck.run.private.
    """

    def __init__(
        self,
        *,
        seed: int,
        step: int,
        shapes: list[tuple[int, ...]] | None,
        start: int,
        size: int,
        total: int,
    ) -> None:
        if not private.DISPATCHES:
            raise _not_here()
        super().__init__()  # type: ignore[no-untyped-call]
        self.base = (seed * 1_000_003 + step) * 100_003
        self.expected = shapes
        self.shapes: list[tuple[int, ...]] = []
        self.start, self.size, self.total = start, size, total
        # Of the batch's samples, where the run has them in another one.
        self.order: Tensor | None = None
        self.of_weights: set[tuple[int, ...]] = set()  # shapes that no samples have
        # Without the reference's shapes: a first dimension of a multiple of the
        # shard's samples is taken for the samples.
        self.guess = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Calls the operation, with the global batch's numbers if it is random."""
        del types
        kwargs = kwargs or {}
        if _RANDOM not in func.tags or _has_generator(args, kwargs):
            return func(*args, **kwargs)
        shape = _result_shape(func, args)
        number = len(self.shapes)
        self.shapes.append(shape)
        if self.expected is None:
            whole = self._guessed(shape) if self.guess else shape
        elif number < len(self.expected):
            whole = self.expected[number]
        else:
            message = f"draw {number} of shape {shape}: the reference draws no more"
            raise NoiseMismatchError(message)
        with _TURN:
            seed_torch(self.base + number)
            return self._draw(func, args, kwargs, shape, whole)

    def _guessed(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if not shape or shape[0] % self.size:
            return shape
        return (shape[0] // self.size * self.total, *shape[1:])

    def _draw(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        shape: tuple[int, ...],
        whole: tuple[int, ...],
    ) -> Any:
        if shape == whole:
            is_of_samples = bool(shape) and not shape[0] % self.total
            if self.order is None or not is_of_samples or shape in self.of_weights:
                return func(*args, **kwargs)
            return self._reordered(func, args, kwargs, shape[0] // self.total)
        dim = _batch_dim(shape, whole)
        if dim is None or whole[dim] * self.size != shape[dim] * self.total:
            message = f"a draw of shape {shape} where the reference draws {whole}"
            raise NoiseMismatchError(message)
        first = self.start * whole[dim] // self.total
        wide = _widen(func, args, shape, whole, dim, first)
        drawn = func(*wide, **kwargs)
        mine = _narrow(drawn, dim, first, shape[dim])
        target = args[0] if args and isinstance(args[0], Tensor) else None
        if target is not None and _name(func).endswith("_"):
            return target.copy_(mine)
        return mine

    def _reordered(self, func: Any, args: Any, kwargs: Any, rows: int) -> Any:
        """Draws as for samples in their own order, `rows` of them each."""
        assert self.order is not None
        order = (self.order[:, None] * rows + torch.arange(rows)).flatten()
        back = order.argsort()
        size = len(order)

        def turned(value: Any, index: Tensor) -> Any:
            return tree.replace(
                value, lambda _, t: t[index] if t.dim() and len(t) == size else t
            )

        drawn = turned(func(*turned(args, back), **kwargs), order)
        if args and isinstance(args[0], Tensor) and _name(func).endswith("_"):
            return args[0].copy_(drawn)
        return drawn


class GlobalDraws(SampleNoise):
    """Draws of generators of the target's own: for the whole batch, this shard's rows.

    What one process draws with that generator. Shards of equal size only. A draw of a
    shape that one process draws too, and not one for more samples, is of none.

    Args:
        rank, world_size: of this process.
        samples: gives the number of samples of this rank.
        known: the shapes that one process draws, "8x3,16"; "" for unknown.
    """

    def __init__(
        self, *, rank: int, world_size: int, samples: Callable[[], int], known: str = ""
    ) -> None:
        super().__init__(seed=0, step=0, shapes=None, start=0, size=1, total=1)
        self.rank, self.world_size, self.samples = rank, world_size, samples
        self.known = known.split(",")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Calls the operation; with a generator it draws the global batch's numbers."""
        del types
        kwargs = kwargs or {}
        if not is_own_draw(func, args, kwargs):
            return func(*args, **kwargs)
        self.size = self.samples()
        self.start, self.total = self.rank * self.size, self.world_size * self.size
        shape = _result_shape(func, args)
        if _name(func) in _OF_DATA and shape and not shape[0] % self.size:
            whole = tree.replace(args, lambda _, t: self._of_all_ranks(t))
            drawn = func(*whole, **kwargs)
            return drawn.narrow(0, self.rank * shape[0], shape[0]).clone()
        return self._draw(func, args, kwargs, shape, self._guessed(shape))

    def _guessed(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        whole = super()._guessed(shape)
        is_of_none = shape_name(shape) in self.known
        return shape if is_of_none and shape_name(whole) not in self.known else whole

    def _of_all_ranks(self, mine: Tensor) -> Tensor:
        """Returns the rows of all ranks: how much is drawn depends on the values."""
        parts = [torch.empty_like(mine).contiguous() for _ in range(self.world_size)]
        dist.all_gather(parts, mine.detach().contiguous())
        return torch.cat(parts)


# They draw as many numbers for an element as its value takes.
_OF_DATA = ("binomial", "poisson")


def is_own_draw(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Returns whether an operation draws numbers with an explicit generator.

    Not permutations: they are of no sample each.
    """
    is_random = _RANDOM in func.tags and _has_generator(args, kwargs)
    return is_random and _name(func) != "randperm"


def _has_generator(args: Any, kwargs: dict[str, Any]) -> bool:
    """Returns whether one is given; `binomial` and `poisson` take it in its place."""
    given = [*args, kwargs.get("generator")]
    return any(isinstance(value, torch.Generator) for value in given)


def _name(func: Any) -> str:
    """Returns "normal_" for the operation aten.normal_.default."""
    return str(func.__name__).partition(".")[0]


def _not_here() -> UsageError:
    return UsageError(
        Problem(
            slug="option-value",
            message="--noise sample does not work with this torch",
            expected="torch.utils._python_dispatch.TorchDispatchMode",
            found=f"torch {torch.__version__}, which has none",
            fix="install another torch, or leave the noise asis",
        )
    )


@contextmanager
def bound(noise: SampleNoise | None) -> Iterator[None]:
    """Enters the mode where there is one."""
    if noise is None:
        yield
        return
    with noise:
        yield


def _result_shape(func: Any, args: Any) -> tuple[int, ...]:
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
    return _name(func) == "multinomial" and args[0].dim() == 1


def _batch_dim(shape: tuple[int, ...], whole: tuple[int, ...]) -> int | None:
    """Returns the one dimension in which the shapes differ."""
    if len(shape) != len(whole):
        return None
    dims = [d for d, (a, b) in enumerate(zip(shape, whole, strict=True)) if a != b]
    return dims[0] if len(dims) == 1 else None


def _widen(
    func: Any,
    args: Any,
    shape: tuple[int, ...],
    whole: tuple[int, ...],
    dim: int,
    first: int,
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


def _zeros_laid_out_as(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Returns zeros whose dimensions lie in memory in the order of `tensor`'s.

    In-place random operations fill in memory order: a transposed tensor draws other
    numbers than a contiguous one.
    """
    order = sorted(range(tensor.dim()), key=lambda d: -tensor.stride(d))  # type: ignore[operator]
    back = [order.index(d) for d in range(tensor.dim())]
    return tensor.new_zeros([shape[d] for d in order]).permute(back)


def _narrow(drawn: Any, dim: int, first: int, size: int) -> Any:
    if isinstance(drawn, Tensor):
        return drawn.narrow(dim, first, size)
    return tuple(_narrow(d, dim, first, size) for d in drawn)
