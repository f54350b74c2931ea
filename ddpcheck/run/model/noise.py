"""Random numbers as a function of the global sample, so that equality is defined.

In mode "sample" every random operation of a step draws, on every rank, the numbers that
the single process draws for the whole batch, and returns the rows of its own shard. The
reference records the shapes of its draws in order; a rank's k-th draw has the shape of
the reference's k-th draw except in one dimension, the batch. Equal shapes mean the same
draw on all ranks. Draws through a `torch.Generator` of the model are unchanged.

Only torch's random operations are handled; numpy's and Python's generators have the
same seed on all ranks.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ddpcheck.compare import tree
from ddpcheck.errors.problem import UsageError, usage_error
from ddpcheck.run import private
from ddpcheck.run.facts import RankFacts
from ddpcheck.run.model import draws
from ddpcheck.run.model.draws import NoiseMismatchError, Shape
from ddpcheck.run.process import callers
from ddpcheck.run.process.isolation import seed_torch
from ddpcheck.run.process.modes import DispatchMode

# Held from seeding, which reaches all devices, to drawing: replicas draw in threads.
_TURN = threading.RLock()
_LOADERS_FRAMES = 12  # of a sampler's own code above a draw, and of the mode's


class DrawCounter(DispatchMode):
    """Counts random operations; has the shapes of those with an explicit generator.

    Also records the seeds of these generators. Draws of data loaders and samplers are
    excluded: they are orders and seeds of samples, not noise.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.own: list[Shape] = []
        self.seeds: set[int] = set()

    @property
    def of_torchs(self) -> int:
        """How many drew with torch's own generator."""
        return self.count - len(self.own)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Excludes draws inside: they are not part of the step."""
        count, own, seeds = self.count, len(self.own), set(self.seeds)
        try:
            yield
        finally:
            self.count, self.seeds = count, seeds
            del self.own[own:]

    def called(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Calls the operation; notes whether it is random."""
        is_drawn = draws.is_random(func, args, kwargs)
        if is_drawn and not _is_loaders(callers.frame(2)):
            self.count += 1
            if draws.is_own_draw(func, args, kwargs):
                self.own.append(draws.result_shape(func, args))
                self.seeds |= draws.seeds(args, kwargs)
        return func(*args, **kwargs)


def _is_loaders(frame: FrameType | None) -> bool:
    """Returns whether torch.utils.data calls, a few frames above."""
    for _ in range(_LOADERS_FRAMES):
        if frame is None:
            return False
        if callers.module_of(frame).startswith("torch.utils.data."):
            return True
        frame = frame.f_back
    return False


class SampleNoise(DispatchMode):
    """Draws for the global batch, keeps the rows of this shard.

    Args:
        seed: of the run; the draws of step s, number k are seeded by (seed, s, k).
        step: counted from 0.
        shapes: the reference's shapes in order; None in the reference, which fills
            `self.shapes`, with None for a draw that follows no sample.
        start, size, total: rows of this shard, and of the whole batch.

    Raises:
        UsageError: option-value; see ddpcheck.run.private.
    """

    def __init__(
        self,
        *,
        seed: int,
        step: int,
        shapes: list[Shape | None] | None,
        start: int,
        size: int,
        total: int,
    ) -> None:
        if not private.DISPATCHES:
            raise _not_here()
        super().__init__()
        self.base = (seed * 1_000_003 + step) * 100_003
        self.expected = shapes
        self.shapes: list[Shape | None] = []
        self.start, self.size, self.total = start, size, total
        # Of the batch's samples, where the run has them in another one.
        self.order: Tensor | None = None
        self.of_weights: set[tuple[int, ...]] = set()  # shapes that no samples have
        # Without the reference's shapes: a first dimension of a multiple of the
        # shard's samples is taken for the samples.
        self.guess = False
        # Of the generator's state, as the target has it, at the first draw for samples.
        self.stream: int | None = None
        self._left, self._own = 0, 0

    def called(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Calls the operation, with the global batch's numbers if it is random."""
        is_drawn = draws.is_random(func, args, kwargs)
        if not is_drawn or draws.has_generator(args, kwargs):
            return func(*args, **kwargs)
        shape = draws.result_shape(func, args)
        number = len(self.shapes)
        is_told = self.expected is not None or not (
            draws.is_uneven(func, args, self.total)
            or draws.draws_inside(func, args, kwargs)
        )
        self.shapes.append(shape if is_told else None)
        whole = self._whole(func, shape, number)
        with _TURN:
            self._note_stream(is_of_samples=shape != whole)
            seed_torch(self.base + number)
            try:
                return self._draw(draws.even(func), args, kwargs, shape, whole)
            finally:
                self._left = _state() if self.stream is None else 0

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Does not count draws inside: they are not part of the step."""
        count, left = len(self.shapes), self._left
        try:
            yield
        finally:
            del self.shapes[count:]
            self._left = left

    def check_count(self) -> None:
        """Refuses fewer draws than the reference's: none of them had its number.

        Raises:
            NoiseMismatchError: see above.
        """
        if self.expected is not None and len(self.shapes) < len(self.expected):
            message = (
                f"{len(self.shapes)} draws in a step where the reference has "
                f"{len(self.expected)}"
            )
            raise NoiseMismatchError(message)

    def _whole(self, func: Any, shape: Shape, number: int) -> Shape:
        """Returns the shape that the single process draws."""
        if self.expected is None:
            is_guessed = self.guess and not draws.is_permutation(func)
            return self._guessed(shape) if is_guessed else shape
        if number >= len(self.expected):
            message = f"draw {number} of shape {shape}: the reference draws no more"
            raise NoiseMismatchError(message)
        whole = self.expected[number]
        if whole is None:
            name = draws.name_of(func)
            message = f"{name} draws by the values of all samples, or inside"
            raise NoiseMismatchError(message)
        return whole

    def _note_stream(self, *, is_of_samples: bool) -> None:
        """Notes the state in which the target left the generator."""
        if self.stream is not None:
            return
        state = _state()
        if state != self._left:  # of the last draw here
            self._own = state
        if is_of_samples:
            self.stream = self._own

    def _guessed(self, shape: Shape) -> Shape:
        if not shape or shape[0] % self.size:
            return shape
        return (shape[0] // self.size * self.total, *shape[1:])

    def _draw(
        self, func: Any, args: Any, kwargs: Any, shape: Shape, whole: Shape
    ) -> Any:
        if shape == whole:
            is_of_samples = bool(shape) and not shape[0] % self.total
            if self.order is None or not is_of_samples or shape in self.of_weights:
                return func(*args, **kwargs)
            return self._reordered(func, args, kwargs, shape[0] // self.total)
        dim = draws.batch_dim(shape, whole)
        if dim is None or whole[dim] * self.size != shape[dim] * self.total:
            message = f"a draw of shape {shape} where the reference draws {whole}"
            raise NoiseMismatchError(message)
        if whole[dim] % self.total:
            message = (
                f"a draw for {whole[dim]} of {self.total} samples: parts of a batch "
                "that are computed one after the other are other samples on a rank"
            )
            raise NoiseMismatchError(message)
        first = self.start * whole[dim] // self.total
        return draws.drawn_wide(func, args, kwargs, shape, whole, first)

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

        own = turned(args, back)
        drawn = func(*own, **kwargs)
        written = draws.write_back(args, own, lambda t: turned(t, order))
        return draws.replaced(drawn, written, lambda t: turned(t, order))


class GlobalDraws(SampleNoise):
    """Draws of the target's own generators: for the whole batch, this shard's rows.

    As the single process draws with that generator. Shards must have equal size. A draw
    is not per sample if the single process draws the same shape, and none for more
    samples.

    Args:
        rank, world_size: of this process.
        samples: returns the number of samples of this rank.
        known: the shapes that the single process draws; empty if unknown.
    """

    def __init__(
        self,
        *,
        rank: int,
        world_size: int,
        samples: Callable[[], int],
        known: Collection[Shape] = (),
    ) -> None:
        super().__init__(seed=0, step=0, shapes=None, start=0, size=1, total=1)
        self.rank, self.world_size, self.samples = rank, world_size, samples
        self.known = known

    def called(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Calls the operation; with a generator it draws the global batch's numbers."""
        if not draws.is_own_draw(func, args, kwargs):
            return func(*args, **kwargs)
        self.size = self.samples()
        self.start, self.total = self.rank * self.size, self.world_size * self.size
        shape = draws.result_shape(func, args)
        if draws.is_of_values(func) and shape and not shape[0] % self.size:
            whole = tree.replace(args, lambda _, t: self._of_all_ranks(t))
            drawn = func(*whole, **kwargs)
            return drawn.narrow(0, self.rank * shape[0], shape[0]).clone()
        return self._draw(func, args, kwargs, shape, self._guessed(shape))

    def _guessed(self, shape: Shape) -> Shape:
        whole = super()._guessed(shape)
        is_of_none = shape in self.known
        return shape if is_of_none and whole not in self.known else whole

    def _of_all_ranks(self, mine: Tensor) -> Tensor:
        """Returns the rows of all ranks: how much is drawn depends on the values."""
        parts = [torch.empty_like(mine).contiguous() for _ in range(self.world_size)]
        dist.all_gather(parts, mine.detach().contiguous())
        return torch.cat(parts)


def _state() -> int:
    return zlib.crc32(torch.get_rng_state().numpy().tobytes())


def _not_here() -> UsageError:
    return usage_error(
        slug="option-value",
        message="--noise sample does not work with this torch",
        expected="torch.utils._python_dispatch.TorchDispatchMode",
        found=f"torch {torch.__version__}, which has none",
        fix="install another torch, or leave the noise asis",
    )


@contextmanager
def bound(noise: SampleNoise | None, *, is_whole: bool = True) -> Iterator[None]:
    """Enters the mode where there is one; `is_whole`: for all draws of a step.

    Raises:
        NoiseMismatchError: there were fewer draws than the reference's.
    """
    if noise is None:
        yield
        return
    with noise:
        yield
    if is_whole:
        noise.check_count()


def undefined(error: Exception) -> RankFacts:
    """Returns a fact of a run that ended with this: no noise to compare it with."""
    if not isinstance(error, NoiseMismatchError):
        return {}
    return {"noise_undefined": str(error)}
