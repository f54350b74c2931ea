"""One training step of a probe: forward, loss, backward; the optimizer stands still.

A step of the user's own may scale gradients after backward, dividing a sum by a count.
Gradients at a cut come from before that. Parameters' begin with a mark that is too
small to matter, another one on every rank, and what became of it tells the factor.

A step that clips would scale by the size of what it finds, which is not that of a
training step where outputs are cut or the batch is taken twice. So gradients are put
aside after every backward, and the marks alone are clipped.
"""

from __future__ import annotations

import contextlib
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
_SAME = 1e-6
_CLOSE = 1e-4  # factors of single numbers, which may be rounded in float32
_FEW = 16  # numbers of each gradient that tell what became of it
_LARGEST = 1e-20  # of what is left of a mark; gradients are larger
Rows = tuple[int, int, int]  # first, how many, of how many


class Done(NamedTuple):
    """What a step says besides its gradients.

    `loss`: its value, where it is known. `factor`: of gradients after backward.
    """

    loss: float | None
    factor: float = 1.0


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

    Gradients add up over all backward passes: `zero_grad` does nothing either.
    `before_backward` takes the loss, each of several. `puts_aside`: the step sees marks
    in the place of gradients.
    """
    for parameter in contents.parameters(model):
        # There also where a train_step clips or logs what was cut off from the loss.
        wanted = target.train_step is not None and parameter.requires_grad
        parameter.grad = _mark(parameter) if wanted else None
    optimizer = models.make_optimizer(target, spec, model)
    optimizer.step = types.MethodType(_nothing, optimizer)  # type: ignore[method-assign]
    optimizer.zero_grad = types.MethodType(_nothing, optimizer)  # type: ignore[method-assign]
    with user_code.steps(spec):
        if target.train_step is not None:
            return _users(target, model, optimizer, batch, before_backward, puts_aside)
        inputs, targets = split(target, batch)
        output = models.call(model, inputs)
        loss = loss_function(target, spec)
        if loss is None:
            value = output["loss"] if isinstance(output, tree.DICTS) else output.loss
        else:
            value = loss(output, targets)
        before_backward(value)
        value.backward()
    return Done(float(value.detach()))


def _users(
    target: Target,
    model: nn.Module,
    optimizer: Any,
    batch: Any,
    before_backward: Callable[[Tensor], None],
    puts_aside: bool,  # noqa: FBT001
) -> Done:
    """Does a step of the target's own."""
    assert target.train_step is not None
    samples, aside = _Samples(model), _Aside(model)

    def after_backward() -> None:
        if puts_aside:
            aside.put()
        samples.take()

    with _roots(before_backward, after_backward) as roots:
        target.train_step(model, optimizer, tree.contents(batch))
    factor = _take_marks(model, is_one=samples.have_one_factor())
    aside.put_back(factor)
    return Done(sum(roots) if roots else None, factor)


def _mark(parameter: nn.Parameter) -> Tensor:
    if parameter.is_complex():
        return torch.zeros_like(parameter)
    rank = dist.get_rank() if dist.is_initialized() else 0
    spread = (torch.arange(parameter.numel()) * 0.618 * (rank + 1)) % 1
    mark = _MARK * (1 + rank + spread.to(torch.float64))
    return mark.reshape(parameter.shape).to(parameter)


class _Aside:
    """What backwards have added to the marks."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.kept: dict[nn.Parameter, Tensor] = {}

    def put(self) -> None:
        """Leaves the marks in the place of gradients."""
        for parameter in contents.parameters(self.model):
            grad = parameter.grad
            if grad is None or grad.requires_grad or not _is_marked(grad):
                continue
            if float(grad.abs().max()) >= _LARGEST:
                kept = self.kept.get(parameter)
                self.kept[parameter] = grad.clone() if kept is None else kept + grad
                grad.copy_(_mark(parameter))

    def put_back(self, factor: float) -> None:
        """Adds it to gradients, as if the step had multiplied it by `factor`."""
        for parameter, kept in self.kept.items():
            grad = parameter.grad
            parameter.grad = kept * factor + (0 if grad is None else grad)


class _Samples:
    """A few numbers of every gradient as the last backward left them."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.taken: dict[str, Tensor] = {}

    def take(self) -> None:
        """Takes them."""
        self.taken = dict(self._now())

    def have_one_factor(self) -> bool:
        """Returns whether all are now what they were, times one factor."""
        pairs = [(self.taken[n], now) for n, now in self._now() if n in self.taken]
        factors = [now[was != 0] / was[was != 0] for was, now in pairs]
        every = torch.cat(factors) if factors else torch.ones(0)
        if any(now[was == 0].any() for was, now in pairs):
            return False
        spread = float((every - every[0]).abs().max()) if every.numel() else 0.0
        return not spread or spread <= _CLOSE * abs(float(every[0]))

    def _now(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in contents.named_parameters(self.model):
            grad = parameter.grad
            if grad is None or grad.layout != torch.strided or grad.is_complex():
                continue
            yield name, grad.detach().flatten()[:_FEW].to(torch.float64, copy=True)


def _is_marked(grad: Tensor) -> bool:
    """Returns whether it began with a mark that can be told from it."""
    return bool(grad.numel()) and grad.layout == torch.strided and not grad.is_complex()


def _take_marks(model: nn.Module, *, is_one: bool) -> float:
    """Returns what all marks were multiplied by, 1 where no one factor fits.

    None does where gradients of ranks were added up, nor where the step did other
    things to some gradients than to others. They are left as if they had begun with
    zeros.
    """
    factors: list[Tensor] = []
    for parameter in contents.parameters(model):
        grad = parameter.grad
        if grad is None or not _is_marked(grad):
            continue
        if float(grad.abs().max()) < _LARGEST:
            factors.append((grad.double() / _mark(parameter).double()).flatten())
            grad.zero_()
    if not factors or not is_one:
        return 1.0
    every = torch.cat(factors)
    first = float(every[0])
    is_same = float((every - first).abs().max()) <= _SAME * abs(first)
    return first if is_same and first else 1.0


@contextlib.contextmanager
def _roots(
    before_backward: Callable[[Tensor], None], after_backward: Callable[[], None]
) -> Iterator[list[float]]:
    """Yields the values of the scalars from which the step goes backward."""
    roots: list[float] = []

    def run(backward: Any, tensors: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(tensors, Tensor) and tensors.numel() == 1:
            before_backward(tensors)
            roots.append(float(tensors.detach()))
        backward(tensors, *args, **kwargs)
        after_backward()

    with backwards.outermost(run):
        yield roots


def _nothing(*_: Any, **__: Any) -> None:
    return None


class Trained(NamedTuple):
    """What is trained: a model, which it is without its wrapper, and its names then."""

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
    rows: Rows,
) -> None:
    """Trains one step per batch, on all ranks or in the single-process run.

    Args:
        target: whose loss, or step, it is.
        spec: the run, or the reference.
        trained: the model.
        batches: this process's own.
        rows: which of the global batch they are.
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
