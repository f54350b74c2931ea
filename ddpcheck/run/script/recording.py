"""One process of a script, recorded as it is: what it draws, and how it updates.

The first runs of a check: the ranks' draws become the batches of all later runs.
"""

from __future__ import annotations

import hashlib
import pickle
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import torch

from ddpcheck.compare import tree
from ddpcheck.ranks import sharing
from ddpcheck.ranks.server import preload
from ddpcheck.ranks.worker import Context
from ddpcheck.run.facts import Group
from ddpcheck.run.script.calls import Calls, signature
from ddpcheck.run.script.driver import Driver
from ddpcheck.run.script.events import CALLS, Built, Updated
from ddpcheck.run.script.loaders import Kept, Loaders, Recorder
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """How the recording of one process ended.

    `steps` were checked, `ended` tells whether the script came to its end. `model`: the
    class and the parameter names of what was wrapped, or None. `draws`: whether a
    loader, or ddpcheck.global_batch, gave the data; `shards`: whether `fully_shard` was
    called. `seconds` of the recorded steps. `modules`: what it has imported that is no
    user code.
    """

    rank: int
    steps: int
    ended: bool
    model: tuple[str, tuple[str, ...]] | None
    wrapper: str
    draws: bool
    shards: bool
    seconds: float
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
        self.rows: list[int] = []  # that the model was given since the last update
        Calls(self.driver, None, self._called)

    def _begin(self, loader: Any, number: int, turn: int) -> Any:
        return self.recorder.begin(self.loaders, loader, number, turn)

    def run(self) -> Recorded:
        """Runs the script to the end of the recording."""
        try:
            return self._run()
        finally:
            if not self.rank:
                _ended(self.folder).touch()

    def _run(self) -> Recorded:
        done, driver = 0, self.driver
        with self.loaders.watched(), sharing.taken_by(self.recorder.share):
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
            seconds=self.seconds or time.perf_counter() - self.started,
            modules=tuple(preload.installed()),
        )

    @property
    def draws(self) -> bool:
        """Whether the script has drawn batches that are seen."""
        return self.loaders.are_used or bool(self.recorder.shared)

    def _called(self, args: Any, kwargs: Any) -> None:
        if not self.draws:
            self.driver.before_draw()
            given = {"args": args, "kwargs": kwargs}
            self.recorder.called(f"{CALLS}.0.{len(self.rows)}", given)
        first = next((t for t in tree.held((args, kwargs)) if t.dim()), None)
        self.rows.append(len(first) if first is not None else 0)

    def _end_step(self, step: int) -> None:
        driver, recorder = self.driver, self.recorder
        if not step:
            model = driver.wrapping
            built = signature(model) if model is not None else None
            self.context.emit(Built(model=built, shards=driver.shards))
        if step < self.steps:
            _write(self.folder, self.rank, step, recorder)
        self.context.emit(
            Updated(
                step=step,
                updates=driver.updates,
                groups=_groups(driver),
                rows=tuple(self.rows),
                weights=_weights(driver),
            )
        )
        self.rows.clear()
        recorder.step, driver.updates = step + 1, 0
        if step + 1 == self.steps:
            self.seconds = time.perf_counter() - self.started
            recorder.keeps_data = False

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


def _weights(driver: Driver) -> str:
    """Returns a digest of the parameters that are trained; see Updated."""
    groups = [group for one in driver.optimizers for group in one.param_groups]
    trained = list({id(p): p for group in groups for p in group["params"]}.values())
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


def _write(folder: Path, rank: int, step: int, recorder: Recorder) -> None:
    drawn = {
        key: (kept.samples, kept.made) if isinstance(kept, Kept) else (None, kept)
        for key, kept in recorder.take().items()
    }
    path = step_file(folder, rank, step)
    with path.with_suffix(".part").open("wb") as stream:
        torch.save(drawn, stream)
    path.with_suffix(".part").rename(path)
    if not rank and recorder.collates and not collate_file(folder).exists():
        try:
            data = cloudpickle.dumps(recorder.collates)
        except Exception:  # noqa: BLE001 (user code; then batches are concatenated)
            data = pickle.dumps({})
        collate_file(folder).write_bytes(data)
