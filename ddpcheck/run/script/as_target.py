"""A script as a target: each of the target's hooks runs the script to its next stop.

`model` runs it until it is about to wrap its model, or, in a process that wraps none,
until it draws its first batch; `wrap` until it has wrapped it; `optimizer` until it
draws its first batch; `train_step` until it draws the first batch after an update.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from ddpcheck.ranks import sharing
from ddpcheck.ranks.messages import Seat
from ddpcheck.ranks.server import preload
from ddpcheck.run.model import averaged, contents
from ddpcheck.run.observe import used_names
from ddpcheck.run.script import numbers
from ddpcheck.run.script.batches import Batches
from ddpcheck.run.script.calls import Calls, model_of
from ddpcheck.run.script.driver import Driver
from ddpcheck.run.script.feeding import Fed, Step, is_unused
from ddpcheck.run.script.loaders import Loaders
from ddpcheck.target.script import Known, Script
from ddpcheck.target.target import Target


def load(script: Script, known: Known) -> Target:
    """Returns the script as a target.

    Args:
        script: to run.
        known: of it, from the recordings of its ranks.
    """
    hooks = _Hooks(script, known)
    return Target(
        name=script.name,
        model=hooks.model,
        batch=hooks.batch,
        wrap=hooks.wrap,
        optimizer=hooks.optimizer,
        train_step=_Step(hooks),
        is_script=True,
        places=dict(known.places),
        split=known.split,
    )


_METHODS = "step", "zero_grad"  # of optimizers, that a probe replaces


class _Hooks:
    """The hooks of a target, for one run of the script after another."""

    def __init__(self, script: Script, known: Known) -> None:
        self.script, self.known = script, known
        self.batches = Batches(
            Path(known.folder),
            known.world_size,
            {n: used for n, used, _ in known.ahead},
            known.collates_shards,
            functools.partial(is_unused, known),
        )
        self.driver: Driver | None = None
        self.seat = _own_seat()  # of this process, also where its group is hidden
        self.step = Step()
        self.shown = nn.Module()  # the model that the check has
        self.wrapper: nn.Module | None = None  # of it
        self.has_started = False  # again, since the last step
        self.variables: dict[str, Any] = {}  # of the script, at its first draw
        self.began_at: int | None = None  # the loader that draws first

    def model(self) -> nn.Module:
        """Starts the script; returns its model, before it is wrapped."""
        self.step = Step()
        self.has_started, self.wrapper = False, None
        self.seat = _own_seat()
        self.shown = self._start()
        return self.shown

    def _start(self) -> nn.Module:
        seat, whole = self.seat, self.known.keeps_whole
        self.driver = driver = Driver(self.script, seat, keeps_whole=whole)
        self.step.since_start = 0
        split = self.known.split if not seat.world_size else 1
        self.fed = fed = Fed(self.step, driver, self.batches, self.known, split)
        loaders = Loaders(fed.begin)
        driver.enter(loaders.watched())
        driver.enter(sharing.taken_by(fed.shared))
        if not self.known.draws:
            calls = Calls(driver, self.known.model, fed.called)
            numbers.watch(driver, calls, fed.numbers)
        driver.resume()
        while driver.stopped == "draw" and not driver.optimizers:
            driver.resume()
        if driver.stopped == "wrapping":
            assert driver.wrapping is not None
            return driver.wrapping
        if driver.stopped == "ended":
            raise self._ended()
        return self._found()

    def wrap(self, model: nn.Module) -> nn.Module:
        """Returns what the script wrapped its model in, or the model itself."""
        driver = self.running
        if driver.stopped != "wrapping":
            return model
        driver.resume()
        if driver.wrapped is None or driver.wrapped is model:  # sharded, in place
            return model
        vars(driver.wrapped)[averaged.IS_HELD] = True
        self.wrapper = driver.wrapped
        return driver.wrapped

    def optimizer(self, parameters: Any) -> Optimizer:
        """Returns the optimizer of the model, when all is built."""
        del parameters
        if not self.step.trained:
            self._to_first_draw()
        elif self._must_start_again():
            self._start_again()
        return self.running.optimizers[0]

    def _to_first_draw(self) -> None:
        driver = self.running
        while driver.stopped != "draw" or not driver.optimizers:
            if driver.stopped == "ended":
                raise self._ended()
            driver.resume()
        driver.stops_at_draws, driver.updates = False, 0
        self.began_at = self.fed.at
        self.variables = driver.variables()
        self.wrapper = self.wrapper or driver.wrapped

    def held(self) -> dict[str, Any]:
        """Returns what the script's functions hold for longer than a step, by name.

        Not what a step makes: its batch, its outputs, its loss.
        """
        now = self.running.variables()
        return {
            name: value
            for name, value in self.variables.items()
            if now.get(name) is value and not _is_of_library(type(value))
        }

    def batch(self, step: int) -> dict[str, Any]:
        """Returns the global batch of a step: what the ranks drew, by key."""
        return self.batches.at(step)

    def train(self, batch: dict[str, Any]) -> None:
        """Trains one step on this batch."""
        if self.step.given:  # what was drawn before the first step is of that step
            self.step.drawn = {}
        self.step.given = batch
        if self.step.trained and self._must_start_again():
            self._start_again()
        self.has_started = False
        self.fed.fill()
        self.running.updates = 0
        self.step.trained += 1
        self.step.since_start += 1
        self.running.resume()

    def _must_start_again(self) -> bool:
        """Returns whether only a new start lets a probe do its step once more.

        A script may end after a few steps, may already hold the next batch, and may
        evaluate after this step, on batches that are not of it.
        """
        if self.has_started:
            return False
        made = [vars(one) for one in self.running.optimizers[:1]]
        # Without one, a new start has failed, which only a probe has tried.
        is_probe = not made or any(name in made[0] for name in _METHODS)
        if self.running.stopped == "ended":
            return is_probe or self.step.trained >= self.known.steps
        is_elsewhere = self.fed.at != self.began_at
        return is_probe and (bool(self.known.ahead) or is_elsewhere)

    def _start_again(self) -> None:
        """Runs the script anew on the model of this run, for one more step."""
        before = self.running.optimizers
        made = self._made_again()
        self.has_started = True
        ours = dict(contents.named_parameters(self.shown))
        named = contents.named_parameters(made)
        old = {id(p): ours[name] for name, p in named if name in ours}
        _take_classes(self.shown, made)
        # One model and one wrapper, with their hooks.
        made.__dict__ = self.shown.__dict__
        if self.running.wrapped is not None and self.wrapper is not None:
            averaged.become(self.running.wrapped, self.wrapper)
        for optimizer, earlier in zip(self.running.optimizers, before, strict=False):
            for group in optimizer.param_groups:
                group["params"] = [old.get(id(p), p) for p in group["params"]]
            for name in _METHODS:
                if name in vars(earlier):
                    setattr(optimizer, name, vars(earlier)[name])

    def _made_again(self) -> nn.Module:
        """Starts the script anew, to its first draw; returns its model.

        Beside its earlier start, which stands still. Libraries that run once in a
        process refuse that; then the earlier one leaves it first.
        """
        earlier = self.running
        try:
            made = self._start()
            self._to_first_draw()
        except (Exception, SystemExit):  # noqa: BLE001 (user code)
            earlier.leave()
            made = self._start()
            self._to_first_draw()
        return made

    @property
    def running(self) -> Driver:
        """The script of the current run."""
        assert self.driver is not None
        return self.driver

    def _found(self) -> nn.Module:
        """Returns the model of a script that wraps none in this process."""
        found = model_of(self.running.optimizers, self.known.model)
        if found is None:
            raise self._ended()
        return found

    def _ended(self) -> RuntimeError:
        # It did more when it was recorded: what is put into it now may end it earlier.
        return RuntimeError(
            f"{self.script.name} ended after {self.step.trained} steps, before it had "
            f"trained {self.known.steps}"
        )


@dataclass(frozen=True, slots=True)
class _Step:
    """The target's train_step; its globals name the script's other optimizers."""

    hooks: _Hooks

    def __call__(self, model: Any, optimizer: Any, batch: Any) -> None:
        del model, optimizer  # the script has them
        self.hooks.train(batch)

    def held(self) -> dict[str, Any]:
        """Returns what the script holds from step to step; see ExternalState."""
        return self.hooks.held()

    @property
    def __globals__(self) -> dict[str, Any]:
        every = self.hooks.running.optimizers
        return {f"optimizer{i}": one for i, one in enumerate(every)}


def _take_classes(model: nn.Module, made: nn.Module) -> None:
    """Gives modules the classes of those that a new start of the script has made.

    It has defined its own classes anew, and may ask for an instance of them.
    """
    new = {name: type(module) for name, module in contents.named_modules(made)}
    for name, module in contents.named_modules(model):
        kind = new.get(name, type(module))
        names = type(module).__module__, type(module).__qualname__
        if names == ("__main__", kind.__qualname__):
            module.__class__ = kind


def _is_of_library(kind: type) -> bool:
    """Returns whether what an object of this class holds is a library's."""
    is_walked = issubclass(kind, nn.Module | torch.Tensor | list | tuple | dict)
    return not is_walked and used_names.is_of_library(kind)


def _own_seat() -> Seat:
    is_rank = dist.is_initialized() and not Driver.has_own_group
    folder = str(preload.FOLDER or ".")
    return Seat(
        rank=dist.get_rank() if is_rank else 0,
        world_size=dist.get_world_size() if is_rank else 0,
        folder=folder,
        name="script",
        timeout_s=0.0,
    )
