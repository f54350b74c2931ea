"""What happens in a process of a script, as plain data: no torch.

A recording emits these as they come, so their order is the order of what happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ddpcheck.run.facts import Group

# The number of the loader that stands for calls of the model, where none draws.
CALLS = -1
# That of the loader that stands for random numbers which the script draws itself.
NUMBERS = -3


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """A loader of the script, when a pass over it begins.

    `batches` and `samples` are the lengths of the loader and of its data set, None
    where they have none. `sampler`: its class; `replicas`: over how many ranks it
    shards, None where it does not. `where`: the line that begins the pass, or "".
    """

    number: int
    turn: int
    batches: int | None
    samples: int | None
    batch_size: int | None
    drop_last: bool
    sampler: str
    shuffles: bool
    replicas: int | None
    is_iterable: bool
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One batch that a rank drew.

    `samples`: the indices of its samples, or digests of them where the loader has no
    indices. `step`: the update that came next (from 0). `rows`: digests of the rows of
    the batch, () where they were not made.
    """

    loader: int
    turn: int
    number: int
    samples: tuple[Any, ...]
    step: int
    rows: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """A pass over a loader that came to its end after this many batches.

    Emitted before the last batch, as the loader's length tells it, and at the end. A
    length may be wrong: then more batches follow.
    """

    loader: int
    turn: int
    batches: int


# By name: some elements of each tensor, evenly spaced.
Elements = dict[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The state of a training after `step` updates, when the next one begins.

    `gradients` are those of the next update. `state`: of the optimizers, by optimizer,
    key and parameter; `groups`: the numbers of their groups. `scalers`: the state of
    gradient scalers. `averages`: weights that no optimizer trains, of what the script's
    functions hold. `random`: a digest of the states of all generators. `ended`: no
    update follows, the script has ended.
    """

    step: int
    ended: bool
    weights: Elements
    buffers: Elements
    gradients: Elements
    state: Elements
    groups: tuple[tuple[Group, ...], ...]
    scalers: Elements
    averages: Elements
    random: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What the script has built, when its first step ends.

    `model`: the class and the parameter names of what was wrapped, or None. `shards`:
    whether fully_shard cut the model. `divided`: the modules that it was called with,
    and the factor by which the script has gradients divided there, or None.
    `places`: lines of the script, see Driver.
    """

    model: tuple[str, tuple[str, ...]] | None
    shards: bool
    places: tuple[tuple[str, str], ...] = ()
    divided: tuple[tuple[str, float | None], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated:
    """One step: the numbers of each optimizer's groups after it, and its updates.

    A scheduler that is stepped before the next draw has changed them. `rows`: the
    lengths of what the wrapped model was given, call by call; () where none is wrapped.
    `weights`: a digest of what the optimizers train, "" where ranks hold parts of it.
    `scale`: what this process's parts of gradients are multiplied by between backward
    and update, None where that is not one factor. `numbers`: how many tensors of random
    numbers the script drew itself, where no loader draws. `at`: seconds since the
    recording began.
    """

    step: int
    updates: int
    groups: tuple[tuple[Group, ...], ...]
    rows: tuple[int, ...] = ()
    weights: str = ""
    scale: float | None = None
    numbers: int = 0
    at: float = 0.0
