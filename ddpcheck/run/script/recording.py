"""One process of a script, recorded as it is: what it draws, and how it updates.

The first runs of a check: the ranks' draws become the batches of all later runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import pickle
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import torch

from ddpcheck.compare import tree
from ddpcheck.errors.problem import usage_error
from ddpcheck.ranks import sharing
from ddpcheck.ranks.server import preload
from ddpcheck.ranks.worker import Context
from ddpcheck.run.facts import Group
from ddpcheck.run.interventions.gradients import backwards
from ddpcheck.run.script import numbers, sharded
from ddpcheck.run.script.calls import Calls, signature
from ddpcheck.run.script.driver import Driver
from ddpcheck.run.script.events import CALLS, NUMBERS, Built, Updated
from ddpcheck.run.script.loaders import Kept, Key, Loaders, Recorder, with_own_classes
from ddpcheck.run.steps import group_numbers
from ddpcheck.target.script import Script

# After the steps that are checked, a script goes on until it has begun as many passes,
# or as many seconds have gone: the order of samples shows over several of them. One
# whose passes are short goes on for a while: a decision to stop, or to lower a learning
# rate, comes late.
_PASSES = 3
_LEAST_MORE_S = 2.0
_SHORT_S = 1.0
# Of more weights, a digest has a part.
_MOST_NUMBERS = 4_000_000
_POLL_S = 0.002
_OTHERS_S = 5.0  # that rank 0 waits for the other ranks' last steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """How the recording of one process ended.

    `steps` were checked, `ended` tells whether the script came to its end. `model`: the
    class and the parameter names of what was wrapped, or None. `draws`: whether a
    loader, or ddpcheck.global_batch, gave the data; `shards`: whether `fully_shard` was
    called; `cut`: what cuts the model over the ranks otherwise, or "". `seconds` of the
    recorded steps, `whole_s` of all. `modules`: what it has imported that is no user
    code.
    """

    rank: int
    steps: int
    ended: bool
    model: tuple[str, tuple[str, ...]] | None
    wrapper: str
    draws: bool
    shards: bool
    cut: str
    seconds: float
    whole_s: float
    modules: tuple[str, ...]


def record(context: Context, *, script: Script, folder: str, steps: int) -> Recorded:
    """Runs the script for some steps; writes each step's batches to `folder`.

    Emits what happens as it happens: Loader, Drawn, Passed, Updated.
    """
    return _Recording(context, script, Path(folder), steps).run()


class _Recording:
    """The recording of one process."""

    def __init__(
        self, context: Context, script: Script, folder: Path, steps: int
    ) -> None:
        self.context, self.folder, self.steps = context, folder, steps
        self.rank = context.seat.rank
        self.driver = Driver(script, context.seat)
        self.driver.stops_at_draws = False
        self.recorder = Recorder(driver=self.driver, emit=context.emit)
        self.loaders = Loaders(self._begin)
        self.started = time.perf_counter()
        self.seconds = 0.0  # of the checked steps
        self.scales = sharded.Scales(self._parts)
        self.old: list[torch.nn.Module] = []  # of FullyShardedDataParallel
        self.rows: list[int] = []  # that the model was given since the last update
        self.numbers = 0  # tensors of random numbers that were drawn until then
        self.pickled: dict[int, bytes] = {}  # collate functions, by loader
        calls = Calls(self.driver, None, self._called)
        numbers.watch(self.driver, calls, self._drew_numbers)

    def _begin(self, loader: Any, number: int, turn: int) -> Any:
        return self.recorder.begin(self.loaders, loader, number, turn)

    def run(self) -> Recorded:
        """Runs the script to the end of the recording."""
        try:
            recorded = self._run()
        finally:
            if not self.rank:
                _ended(self.folder).touch()
        if self.pickled:
            self._make_unions(recorded.steps)
        return recorded

    def _run(self) -> Recorded:
        done, driver = 0, self.driver
        with (
            self.loaders.watched(),
            sharing.taken_by(self.recorder.share),
            backwards.outermost(self._backward),
            self.scales.watched(),
            sharded.old_noted(self.old),
        ):
            while True:
                is_over = driver.resume() == "ended"
                if driver.updates and (is_over or driver.stopped == "draw"):
                    self._end_step(done)
                    done += 1
                    if done >= self.steps and not is_over and not self._goes_on(done):
                        break
                if is_over:
                    break
        model = driver.wrapping
        wrapper = driver.wrapped
        return Recorded(
            rank=self.rank,
            steps=min(done, self.steps),
            ended=driver.stopped == "ended",
            model=signature(model) if model is not None else None,
            wrapper=type(wrapper).__name__ if wrapper is not None else "",
            draws=self.draws,
            shards=driver.shards,
            cut=sharded.cut_otherwise(self.old, _trained(driver), shards=driver.shards),
            seconds=self.seconds or time.perf_counter() - self.started,
            whole_s=time.perf_counter() - self.started,
            modules=tuple(preload.installed()),
        )

    def _backward(self, backward: Any, *args: Any, **kwargs: Any) -> None:
        self.driver.passes("backward")
        backward(*args, **kwargs)

    @property
    def draws(self) -> bool:
        """Whether the script has drawn batches that are seen."""
        return self.loaders.are_used or bool(self.recorder.shared)

    def _parts(self) -> list[torch.Tensor]:
        """Returns what the optimizers train, where the script shards it."""
        return _trained(self.driver) if self.driver.shards else []

    def _called(self, args: Any, kwargs: Any) -> None:
        if not self.draws:
            self.driver.before_draw()
            given = {"args": args, "kwargs": kwargs}
            self.recorder.called(f"{CALLS}.0.{len(self.rows)}", given)
        first = next((t for t in tree.held((args, kwargs)) if t.dim()), None)
        self.rows.append(len(first) if first is not None else 0)

    def _drew_numbers(self, drawn: torch.Tensor) -> torch.Tensor:
        if not self.draws:
            self.driver.before_draw()
            self.recorder.drew_numbers(drawn)
        return drawn

    def _end_step(self, step: int) -> None:
        driver, recorder = self.driver, self.recorder
        if not step:
            model = driver.wrapping
            built = signature(model) if model is not None else None
            places = tuple(driver.places.items())
            parts = sharded.divided(model) if driver.shards and model else ()
            self.context.emit(
                Built(
                    model=built,
                    shards=driver.shards,
                    divided=parts,
                    places=places,
                )
            )
        if step < self.steps:
            self._write(step)
        self.context.emit(
            Updated(
                step=step,
                updates=driver.updates,
                groups=_groups(driver),
                rows=tuple(self.rows),
                weights=_weights(driver),
                scale=self.scales.take(),
                numbers=0 if self.draws else recorder.numbers - self.numbers,
                at=time.perf_counter() - self.started,
            )
        )
        self.rows.clear()
        self.numbers = recorder.numbers
        recorder.step, driver.updates = step + 1, 0
        if step + 1 == self.steps:
            self.seconds = time.perf_counter() - self.started
            recorder.keeps_data = False

    def _write(self, step: int) -> None:
        """Writes what this rank drew in a step; samples only where they can be."""
        drawn = {
            key: (kept.samples, kept.made) if isinstance(kept, Kept) else (None, kept)
            for key, kept in self.recorder.take().items()
            if loader_of(key) != NUMBERS or not self.draws
        }
        path = step_file(self.folder, self.rank, step)
        try:
            _save(drawn, path)
        except Exception:  # noqa: BLE001 (user code)
            self._save_made(
                {key: (None, made) for key, (_, made) in drawn.items()}, path
            )
        if not self.rank:
            self._write_collates()

    def _save_made(self, drawn: dict[Key, Any], path: Path) -> None:
        try:
            _save(drawn, path)
        except Exception as error:
            raise usage_error(
                slug="script-fails",
                message="a batch of the loader cannot be pickled",
                expected="batches of tensors, numbers and text: each process of the "
                "check is given them",
                found=f"{type(error).__name__}: {error}",
                fix="let collate_fn leave out of the batch what cannot be pickled",
            ) from error

    def _write_collates(self) -> None:
        """Writes what makes batches of other samples; some cannot be pickled."""
        new = self.recorder.collates.keys() - self.pickled.keys()
        for number in new:
            try:
                data = cloudpickle.dumps(self.recorder.collates[number])
            except Exception:  # noqa: BLE001 (user code)
                data = b""
            self.pickled[number] = data
        if new:
            data = pickle.dumps({n: one for n, one in self.pickled.items() if one})
            collate_file(self.folder).write_bytes(data)

    def _make_unions(self, steps: int) -> None:
        """Makes the batches of all ranks' samples, where the script's collate_fn is.

        Another process may not have what it holds, nor the script's own classes.
        """
        parts = defaultdict[Key, list[Any]](list)
        for path in self._files_of_ranks(steps):
            drawn = torch.load(path, weights_only=False)
            for key, (samples, _) in drawn.items():
                parts[key].append(samples)
        for key, every in parts.items():
            collate = self.recorder.collates.get(loader_of(key))
            if collate is None or any(samples is None for samples in every):
                continue
            union = [sample for samples in every for sample in samples]
            with contextlib.suppress(Exception), self.driver.as_in_script():
                made = collate([with_own_classes(sample) for sample in union])
                _save(made, union_file(self.folder, key))

    def _files_of_ranks(self, steps: int) -> list[Path]:
        """Returns what all ranks have recorded; one that hangs is not waited for."""
        size = max(1, self.context.seat.world_size)
        seats = itertools.product(range(size), range(steps))
        files = [step_file(self.folder, rank, step) for rank, step in seats]
        until = time.monotonic() + _OTHERS_S
        while time.monotonic() < until and not all(file.exists() for file in files):
            time.sleep(_POLL_S)
        return [file for file in files if file.exists()]

    def _goes_on(self, step: int) -> bool:
        """Returns whether to draw on after the checked steps; rank 0 decides for all.

        A rank that stops alone would leave the others in an exchange.
        """
        if not self.rank:
            more_s = max(_LEAST_MORE_S, self.seconds)
            more = time.perf_counter() - self.started - self.seconds
            wants_more = self.recorder.turns < _PASSES or more < _SHORT_S
            goes_on = wants_more and more <= more_s
            self._decide(step, goes_on=goes_on)
            return goes_on
        while True:
            is_over = _ended(self.folder).exists()  # looked at before decisions
            for goes_on in (True, False):
                if _decision(self.folder, step, goes_on=goes_on).exists():
                    return goes_on
            if is_over:
                return True
            time.sleep(_POLL_S)

    def _decide(self, step: int, *, goes_on: bool) -> None:
        _decision(self.folder, step, goes_on=goes_on).touch()


def _decision(folder: Path, step: int, *, goes_on: bool) -> Path:
    return folder / f"{step}.{'go' if goes_on else 'stop'}"


def _ended(folder: Path) -> Path:
    """Returns the mark of rank 0's end: after it, it decides nothing."""
    return folder / "ended"


def _groups(driver: Driver) -> tuple[tuple[Group, ...], ...]:
    return tuple(tuple(group_numbers(optimizer)) for optimizer in driver.optimizers)


def _trained(driver: Driver) -> list[torch.Tensor]:
    groups = [group for one in driver.optimizers for group in one.param_groups]
    return list({id(p): p for group in groups for p in group["params"]}.values())


def _weights(driver: Driver) -> str:
    """Returns a digest of the parameters that are trained; see Updated."""
    trained = _trained(driver)
    if any(hasattr(parameter, "to_local") for parameter in trained):
        return ""
    stride = 1 + sum(p.numel() for p in trained) // _MOST_NUMBERS
    whole = hashlib.sha1(usedforsecurity=False)
    for parameter in trained:
        own = parameter.detach().reshape(-1)[::stride].cpu().contiguous()
        whole.update(own.view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()[:16]


def step_file(folder: Path, rank: int, step: int) -> Path:
    """Returns where a rank's batches of a step are."""
    return folder / f"batches-{rank}-{step}.pt"


def collate_file(folder: Path) -> Path:
    """Returns where the collate functions of the script's loaders are."""
    return folder / "collate.pkl"


def union_file(folder: Path, key: Key) -> Path:
    """Returns where the batch of all ranks' samples is, if `make_unions` made it."""
    return folder / f"union-{key}.pt"


def loader_of(key: Key) -> int:
    """Returns the number of the loader that a key of a batch names."""
    return int(key.partition(".")[0])


def numbers_of(key: Key) -> tuple[int, int, int]:
    """Returns the numbers of the loader, of the pass, and of the batch in it."""
    loader, turn, number = key.split(".")
    return int(loader), int(turn), int(number)


def _save(value: Any, path: Path) -> None:
    """Writes what other processes load before they run the script.

    Classes that the script itself defines are in `__main__`, which these have not.
    """
    part = path.with_suffix(".part")
    with part.open("wb") as stream:
        torch.save(value, stream, pickle_module=cloudpickle)
    part.rename(path)
