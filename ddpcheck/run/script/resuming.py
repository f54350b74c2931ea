"""One process of a script, followed from update to update: what a resume must restore.

The state is looked at when an update begins: a resumed script has restored all by then,
and whatever it saves after the update before is written.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ddpcheck.ranks.worker import Context
from ddpcheck.run.model import contents
from ddpcheck.run.model.whole import wholes
from ddpcheck.run.observe.external_state import weights_held
from ddpcheck.run.process.replacing import replaced
from ddpcheck.run.record import optimizers
from ddpcheck.run.script.calls import Calls, model_of
from ddpcheck.run.script.driver import Driver, is_empty
from ddpcheck.run.script.events import CALLS, Drawn, Elements, Moment
from ddpcheck.run.script.loaders import Loaders, Recorder, digests
from ddpcheck.run.steps import group_numbers
from ddpcheck.target.script import Script


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """What was trained: the classes of model and optimizer, and the model's size."""

    model: str
    optimizer: str
    num_parameters: int
    num_tensors: int


def follow(context: Context, *, script: Script, updates: int) -> Followed:
    """Runs the script until it is about to make one update more than `updates`.

    Emits Loader, Drawn, Passed and Moment as they come.
    """
    return _Following(context, script, updates).run()


class _Following:
    """The run of one process."""

    def __init__(self, context: Context, script: Script, updates: int) -> None:
        self.context, self.until = context, updates
        self.driver = Driver(script, context.seat)
        self.driver.stops_at_draws = False
        self.recorder = Recorder(driver=self.driver, emit=context.emit)
        self.recorder.keeps_data = False
        self.loaders = Loaders(self._begin)
        self.done = 0  # updates
        self.seen = -1  # the last moment that was emitted
        self.stepped: dict[frozenset[int], Any] = {}  # by their parameters
        self.calls = 0  # of the model, where no loader draws batches
        self.model: nn.Module | None = None
        self.scalers: list[torch.amp.GradScaler] = []
        Calls(self.driver, None, self._called)

    def _begin(self, loader: Any, number: int, turn: int) -> Any:
        return self.recorder.begin(self.loaders, loader, number, turn)

    def run(self) -> Followed:
        """Runs the script up to the last moment."""
        driver = self.driver
        hook = register_optimizer_step_pre_hook(self._before_update)
        try:
            with self.loaders.watched(), _built(self.scalers):
                while driver.resume() not in ("update", "ended"):
                    if driver.stopped == "draw" and driver.updates:
                        self._next()
        finally:
            hook.remove()
        if driver.stopped == "ended":
            if driver.updates:
                self._next()
            self._emit(ended=True)
        model = self._model()
        kinds = [type(one).__name__ for one in driver.optimizers]
        return Followed(
            model=type(model).__name__,
            optimizer=", ".join(dict.fromkeys(kinds)),
            num_parameters=sum(p.numel() for p in contents.parameters(model)),
            num_tensors=sum(1 for _ in contents.parameters(model)),
        )

    def _next(self) -> None:
        self.done, self.driver.updates = self.done + 1, 0
        self.recorder.step = self.done

    def _called(self, args: Any, kwargs: Any) -> None:
        if self.loaders.are_used:
            return
        self.driver.before_draw()
        self.context.emit(
            Drawn(
                loader=CALLS,
                turn=0,
                number=self.calls,
                samples=digests((args, kwargs)),
                step=self.done,
            )
        )
        self.calls += 1

    def _before_update(self, optimizer: Any, *_: Any) -> None:
        if is_empty(optimizer):
            return
        self.stepped[_held(optimizer)] = optimizer
        if self.driver.updates or self.seen == self.done:
            return  # of this step another optimizer has begun, or an outer one
        self._emit(ended=False)
        if self.done == self.until:
            self.driver.stop("update")

    def _emit(self, *, ended: bool) -> None:
        self.seen = self.done
        with torch.no_grad():
            names = self._named()
            trained = wholes(names)
            grads = wholes({n: p.grad for n, p in names.items()})
            buffers = wholes(dict(contents.named_buffers(self._model())))
            state = [optimizers.numbers(one, names) for one in self._optimizers()]
            averages = self._averages(names)
        self.context.emit(
            Moment(
                step=self.done,
                ended=ended,
                weights=_elements(trained),
                buffers=_elements(buffers),
                gradients=_elements(grads),
                state={
                    f"{_of(number)}{key} of {name}": _numbers(flat)
                    for number, keys in enumerate(state)
                    for key, parameters in keys.items()
                    for name, flat in parameters.items()
                },
                groups=tuple(tuple(group_numbers(one)) for one in self._optimizers()),
                scalers=_states(self.scalers),
                averages=_elements(averages),
                random=_random(),
            )
        )

    def _averages(self, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the weights that no optimizer trains, of what functions hold."""
        own = {id(parameter) for parameter in trained.values()}
        found = weights_held(self._model(), self.driver.variables())
        return {name: one for name, one in found.items() if id(one) not in own}

    def _optimizers(self) -> list[Any]:
        """Returns the optimizers, of those with the same parameters the one in use.

        A script may build one anew when it resumes.
        """
        known = {_held(one): one for one in self.driver.optimizers} | self.stepped
        return list(known.values())

    def _model(self) -> nn.Module:
        if self.model is None:
            found = self.driver.wrapping or model_of(self.driver.optimizers, None)
            self.model = found if found is not None else nn.Module()
        return self.model

    def _named(self) -> dict[str, Tensor]:
        """Returns all parameters that are trained, or that the model has, by name."""
        named: dict[str, Tensor] = dict(contents.named_parameters(self._model()))
        known = {id(parameter) for parameter in named.values()}
        for number, optimizer in enumerate(self._optimizers()):
            every = (p for group in optimizer.param_groups for p in group["params"])
            for place, parameter in enumerate(every):
                if id(parameter) not in known:
                    known.add(id(parameter))
                    named[f"{_of(number)}parameter {place}"] = parameter
        return named


@contextlib.contextmanager
def _built(scalers: list[torch.amp.GradScaler]) -> Iterator[None]:
    """Adds gradient scalers to the list as they are built."""
    init = torch.amp.GradScaler.__init__

    def noticing(scaler: torch.amp.GradScaler, *args: Any, **kwargs: Any) -> None:
        init(scaler, *args, **kwargs)
        scalers.append(scaler)

    with replaced(torch.amp.GradScaler, __init__=functools.wraps(init)(noticing)):
        yield


def _states(scalers: Sequence[torch.amp.GradScaler]) -> Elements:
    """Returns the numbers of gradient scalers; one that is disabled has none."""
    return {
        f"{key.strip('_')} of scaler {number + 1}": (float(value),)
        for number, scaler in enumerate(scalers)
        for key, value in scaler.state_dict().items()
    }


def _held(optimizer: Any) -> frozenset[int]:
    groups = optimizer.param_groups
    return frozenset(id(p) for group in groups for p in group["params"])


def _of(number: int) -> str:
    return f"optimizer {number + 1}: " if number else ""


def _elements(named: Mapping[str, Tensor | None]) -> Elements:
    flats = ((name, optimizers.elements(tensor)) for name, tensor in named.items())
    return {name: _numbers(flat) for name, flat in flats if flat is not None}


def _numbers(flat: Tensor) -> tuple[float, ...]:
    return tuple(flat.detach().double().cpu().tolist())


def _random() -> str:
    """Returns a digest of the states of torch's, numpy's and Python's generators."""
    numbers: Any = np.random.get_state()  # noqa: NPY002
    whole = hashlib.sha1(usedforsecurity=False)
    whole.update(torch.get_rng_state().numpy().tobytes())
    whole.update(numbers[1].tobytes() + repr(numbers[2:]).encode())
    whole.update(repr(random.getstate()).encode())
    return whole.hexdigest()[:16]
