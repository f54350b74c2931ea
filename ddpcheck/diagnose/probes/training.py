"""One training step of a probe: forward, loss, backward; no update of weights.

A user's train_step may multiply gradients after backward, for instance by 1 / count.
The gradients at cuts do not contain this factor. To measure it, each parameter's
gradient begins with a mark: a number that is too small to matter, and different on
every rank. What the step has multiplied the marks by is the factor.

A step that clips gradients multiplies by a factor that depends on their size, which
differs from a training step's if outputs are cut or the batch is repeated. So gradients
are set aside after every backward, and the step clips the marks alone.
"""

from __future__ import annotations

import contextlib
import math
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddpcheck.compare import tree
from ddpcheck.run.interventions import apply as fixes
from ddpcheck.run.interventions.gradients import backwards
from ddpcheck.run.model import averaged, contents, user_code
from ddpcheck.run.model import model as models
from ddpcheck.run.model.names import Names
from ddpcheck.run.observe import countables
from ddpcheck.run.spec import RunSpec
from ddpcheck.run.steps import Training, split
from ddpcheck.run.surroundings import bound_noise, loss_function
from ddpcheck.target.target import Target

_MARK = 1e-30
_LARGEST = 1e-20  # of a multiplied mark; gradients are larger
_SAME = 1e-6  # relative; the factors of two marks
_CLOSE = 1e-4  # relative; the factors of two gradients, which may be rounded in float32
_FEW = 16  # numbers of each gradient from which the factor is computed


class Done(NamedTuple):
    """The result of a step besides its gradients.

    `loss`: its value, if it is known. `factor`: of gradients after backward.
    `of_sum`: the factor of the sum of all ranks' gradients, where the step adds them
    up, else None.
    """

    loss: float | None
    factor: float = 1.0
    of_sum: float | None = None


def begin(target: Target, spec: RunSpec, model: nn.Module) -> None:
    """Runs a script to its first step, before hooks are attached.

    What it does before, as to evaluate the model, is not of the step.
    """
    if target.is_script:
        models.make_optimizer(target, spec, model)


def step(
    target: Target,
    spec: RunSpec,
    model: nn.Module,
    batch: Any,
    before_backward: Callable[[Tensor], None] = lambda _: None,
    *,
    puts_aside: bool = False,
) -> Done:
    """Does one step without updating weights.

    Gradients add up over all backward passes, since `zero_grad` does nothing either.
    `before_backward` is called with each loss of the step. `puts_aside`: a train_step
    sees the marks in the place of gradients.
    """
    for parameter in contents.parameters(model):
        # Also for parameters without a gradient: a train_step may clip or log all.
        is_marked = target.train_step is not None and parameter.requires_grad
        parameter.grad = _mark(parameter) if is_marked else None
    optimizer = models.make_optimizer(target, spec, model)
    for name, method in (("step", _no_update), ("zero_grad", _nothing)):
        setattr(optimizer, name, types.MethodType(method, optimizer))
    with user_code.steps(spec):
        if target.train_step is None:
            inputs, targets = split(target, batch)
            output = models.call(model, inputs)
            loss = loss_function(target, spec)
            if loss is not None:
                value = loss(output, targets)
            else:
                value = (
                    output["loss"] if isinstance(output, tree.DICTS) else output.loss
                )
            before_backward(value)
            value.backward()
            return Done(float(value.detach()))
        marks = _Marks(model, puts_aside=puts_aside)
        with _roots(before_backward, marks.after_backward) as roots:
            target.train_step(model, optimizer, tree.contents(batch))
        of_sum = marks.factor_of_sum()
        return Done(sum(roots) if roots else None, marks.remove(), of_sum)


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _no_update(_: Any, closure: Callable[[], Any] | None = None, **__: Any) -> Any:
    """Updates nothing; a closure, which computes the gradients, is called once."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


@contextlib.contextmanager
def _roots(
    before_backward: Callable[[Tensor], None], after_backward: Callable[[], None]
) -> Iterator[list[float]]:
    """Yields the values of the scalars on which the step calls backward."""
    roots: list[float] = []

    def run(backward: Any, tensors: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(tensors, Tensor) and tensors.numel() == 1:
            before_backward(tensors)
            roots.append(float(tensors.detach()))
        backward(tensors, *args, **kwargs)
        after_backward()

    with backwards.outermost(run):
        yield roots


def _mark(parameter: nn.Parameter) -> Tensor:
    rank = dist.get_rank() if dist.is_initialized() else 0
    return _mark_of(rank, parameter)


def _mark_of(rank: int, parameter: nn.Parameter) -> Tensor:
    """Returns the mark that a rank gives this parameter."""
    if parameter.is_complex():
        return torch.zeros_like(parameter)
    spread = (torch.arange(parameter.numel()) * 0.618 * (rank + 1)) % 1
    mark = _MARK * (1 + rank + spread.to(torch.float64))
    return mark.reshape(parameter.shape).to(parameter)


class _Marks:
    """The marks of all parameters, and the gradients that are set aside for them."""

    def __init__(self, model: nn.Module, *, puts_aside: bool) -> None:
        self._model, self._puts_aside = model, puts_aside
        self._aside: dict[nn.Parameter, Tensor] = {}
        self._numbers: dict[str, Tensor] = {}  # of gradients after the last backward

    def after_backward(self) -> None:
        """Sets gradients aside, and keeps a few of their numbers."""
        for parameter, grad in self._marked() if self._puts_aside else ():
            if not grad.requires_grad and float(grad.abs().max()) >= _LARGEST:
                aside = self._aside.get(parameter)
                self._aside[parameter] = grad.clone() if aside is None else aside + grad
                grad.copy_(_mark(parameter))
        self._numbers = dict(self._now())

    def remove(self) -> float:
        """Removes the marks; returns their factor, 1 if there is no single one.

        There is none if gradients of ranks were added up, or if the step multiplied
        gradients by different factors. Gradients that were set aside are multiplied by
        the factor and put back.
        """
        has_one = self._have_one_factor()
        factors: list[Tensor] = []
        for parameter, grad in self._marked():
            if float(grad.abs().max()) < _LARGEST:
                factors.append((grad.double() / _mark(parameter).double()).flatten())
                grad.zero_()
        factor = 1.0
        if factors and has_one:
            factor = _single(torch.cat(factors)) or 1.0
        for parameter, aside in self._aside.items():
            now = parameter.grad
            parameter.grad = aside * factor + (0 if now is None else now)
        return factor

    def factor_of_sum(self) -> float | None:
        """Returns the factor of the sum of all ranks' marks, None where it is none."""
        world = dist.get_world_size() if dist.is_initialized() else 1
        factors = []
        for parameter, grad in self._marked() if world > 1 else ():
            marks = (_mark_of(rank, parameter) for rank in range(world))
            total = sum(mark.double() for mark in marks)
            factors.append((grad.double() / total).flatten())
        return _single(torch.cat(factors)) if factors else None

    def _marked(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Yields the parameters whose gradient began with a mark that can be read."""
        for parameter in contents.parameters(self._model):
            grad = parameter.grad
            if grad is not None and grad.numel() and _is_readable(grad):
                yield parameter, grad

    def _have_one_factor(self) -> bool:
        """Returns whether one factor explains what gradients are since backward."""
        known = self._numbers
        pairs = [(known[n], now) for n, now in self._now() if n in known]
        factors = [now[was != 0] / was[was != 0] for was, now in pairs]
        every = torch.cat(factors) if factors else torch.ones(0)
        if any(now[was == 0].any() for was, now in pairs):
            return False
        spread = float((every - every[0]).abs().max()) if every.numel() else 0.0
        return not spread or spread <= _CLOSE * abs(float(every[0]))

    def _now(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in contents.named_parameters(self._model):
            grad = parameter.grad
            if grad is not None and _is_readable(grad):
                yield name, grad.detach().flatten()[:_FEW].to(torch.float64, copy=True)


def _single(factors: Tensor) -> float | None:
    """Returns the one factor that all are, None where they differ."""
    first = float(factors[0])
    is_same = float((factors - first).abs().max()) <= _SAME * abs(first)
    return first if is_same and math.isfinite(first) else None


def _is_readable(grad: Tensor) -> bool:
    return grad.layout == torch.strided and not grad.is_complex()


class Trained(NamedTuple):
    """A model that is trained, the same model without its wrapper, and its names."""

    model: nn.Module
    bare: nn.Module
    names: Names


class _Nobody:
    def take(self, quantity: str, step: int, named: dict[str, Tensor | None]) -> None:
        """Records nothing."""


def train_before(
    target: Target,
    spec: RunSpec,
    trained: Trained,
    batches: list[Any],
    rows: tuple[int, int, int],
) -> None:
    """Trains the steps before the probed one, one per batch.

    Otherwise a probe does the first step that differs with the initial weights. What
    begins later, as a schedule or a term of a later epoch, shows only after the earlier
    steps, in which the ranks equal the single-process run.

    `rows`: (first sample, number of samples, samples in all) of this process.
    """
    model, bare, names = trained
    start, size, total = rows
    training = Training(
        target=target,
        model=model,
        optimizer=models.make_optimizer(target, spec, model),
        names=names,
        recorder=_Nobody(),
        spec=spec,
        loss=loss_function(target, spec),
        around_step=lambda _: bound_noise(spec, total, start, size),
    )
    by_hand = averaged.averaging(training.parameters, dict)
    with (
        fixes.around_training(
            spec.fixes,
            lambda: countables.targets_of(target, batches[training.step]),
            lambda: bare,
        ),
        contextlib.nullcontext() if model is bare else by_hand,
    ):
        training.run(iter(batches))
