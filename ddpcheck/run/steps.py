"""The training loop of every mode, and what it records.

A `Recorder` gets the gradients of an optimizer's parameters at each `optimizer.step()`,
and weights and buffers after the step. The reference writes them; every other run
compares them with the written ones, so that no run keeps copies.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy import ndarray
from torch import Tensor, nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ddpcheck.compare import tree
from ddpcheck.errors.problem import cut, usage_error
from ddpcheck.run.facts import Group, Members
from ddpcheck.run.model import model as models
from ddpcheck.run.model import user_code
from ddpcheck.run.model.names import Names
from ddpcheck.run.model.whole import settle, wholes
from ddpcheck.run.observe import used_names
from ddpcheck.run.private import version
from ddpcheck.run.spec import RunSpec
from ddpcheck.target import target as target_module
from ddpcheck.target.target import Target

# Gradients at an update of tensors outside the model, as weights of a loss.
OF_OTHERS = "gradients@other"
_OR_SAMPLES = "; of a list of samples: def collate(samples)"
_MOST_SIZES = 3  # of a batch's tensors, named in an error


class Recorder(Protocol):
    """Receives the tensors of a run, one quantity and step at a time."""

    def take(self, quantity: str, step: int, named: dict[str, Tensor | None]) -> None:
        """Takes one group of tensors; they may be overwritten afterwards."""


class OptimizerNotes(Protocol):
    """Receives the updates of each optimizer, with the parameters that it holds."""

    def begins(self, optimizer: Any, named: Mapping[str, Tensor], step: int) -> None:
        """Notes that an optimizer is about to update."""

    def ends(self, optimizer: Any, named: Mapping[str, Tensor], step: int) -> None:
        """Notes that it has updated."""


@dataclass(frozen=True, slots=True)
class _Gradients:
    """The gradients at one moment, and their version counters.

    Kept during an update, as ids of freed tensors are reused.
    """

    parameters: dict[str, Tensor]
    tensors: list[Tensor]
    versions: list[int]

    @classmethod
    def of(cls, parameters: dict[str, Tensor]) -> _Gradients:
        """Returns the gradients of these parameters."""
        grads = [p.grad for p in parameters.values() if p.grad is not None]
        return cls(parameters, grads, [version(grad) for grad in grads])

    def are_of(self, other: _Gradients | None) -> bool:
        """Returns whether these are unchanged since `other`."""
        if other is None:
            return False
        known = dict(zip(map(id, other.tensors), other.versions, strict=True))
        return all(
            known.get(id(grad)) == written
            for grad, written in zip(self.tensors, self.versions, strict=True)
        )


@dataclass(slots=True)
class Training:
    """The training of a model in this process, and the hooks that record it."""

    target: Target
    model: nn.Module  # the model to train: bare, or wrapped
    optimizer: Any
    names: Names
    recorder: Recorder
    spec: RunSpec
    loss: Callable[[Any, Any], Any] | None
    # Context of a step, set by the caller: noise.
    around_step: Callable[[int], Any] = lambda _: contextlib.nullcontext()
    after_step: Callable[[], None] = lambda: None
    on_update: Callable[[], None] = lambda: None
    # Takes the parameters of an optimizer that has just stepped.
    after_update: Callable[[dict[str, Tensor]], None] = lambda _: None
    notes: OptimizerNotes | None = None
    # (train, batch) -> loss: how often, and on which rows, a step's batch is trained.
    perform: Callable[[Callable[[Any], float | None], Any], float | None] = (
        lambda train, batch: train(batch)
    )
    # Also record gradients that no update uses: which parameters have none, and the
    # sizes of gradients, are facts of the model.
    takes_all: bool = False
    # Steps that end with partial sums of gradients, which later steps continue.
    unfinished: Collection[int] = ()
    step: int = 0
    updates: int = 0  # optimizer steps so far in this step
    losses: list[float | None] = field(default_factory=list)
    loss_dtype: str = ""  # of the last loss: its precision
    schedule: list[tuple[int, list[Group]]] = field(default_factory=list)
    members: list[Members] = field(default_factory=list)  # of its groups
    vector_loss: int = 0
    taken: dict[str, None] = field(default_factory=dict)  # names, by any update
    bare: list[int] = field(default_factory=list)  # steps without an optimizer step
    closes: bool = False  # an optimizer has called a closure that makes gradients
    # Gradients at the beginning of each optimizer step that has not ended.
    _open: list[_Gradients | None] = field(default_factory=list)
    # Updates of optimizers without parameters of the model, in this step.
    _other_updates: int = 0
    _has_stepped: bool = False
    # Parameters of optimizers without gradients yet: a closure may compute them.
    _late: dict[str, Tensor] = field(default_factory=dict)
    _others: dict[str, Any] = field(default_factory=dict)
    # The parameters after a step, until the next begins: nothing replaces them then.
    _settled: dict[str, Tensor] | None = None

    def run(self, batches: Iterator[Any]) -> None:
        """Trains one step per batch."""
        self._others = used_names.other_optimizers(
            self.target.train_step, self.optimizer
        )
        with (
            register_optimizer_step_pre_hook(self._before_update),
            register_optimizer_step_post_hook(self._after_update),
        ):
            for step, batch in enumerate(batches):
                self.step, self._open, self._settled = step, [], None
                self.begin()
                with user_code.steps(self.spec), self.around_step(step):
                    self.losses.append(self.perform(self._train, batch))
                self._record_left()
                self.after_step()
                self._record_state()

    def begin(self) -> None:
        """Begins to count the updates of a step."""
        self.updates = self._other_updates = 0
        self._has_stepped, self._late = False, {}

    def parameters(self) -> dict[str, Tensor]:
        """Returns all parameters of model and optimizers by their names."""
        if self._settled is not None:
            return self._settled
        return self._parameters(self._others)

    def _parameters(self, more: dict[str, Any]) -> dict[str, Tensor]:
        optimizers = {"optimizer": self.optimizer, **more}
        return self.names.parameters(self.model, used_names.trained_tensors(optimizers))

    def _train(self, batch: Any) -> float | None:
        if self.target.train_step is not None:
            given = tree.contents(batch)
            value = self.target.train_step(self.model, self.optimizer, given)
            is_number = isinstance(value, Tensor) and value.numel() == 1
            return self._number(value) if is_number else None
        inputs, targets = split(self.target, batch)
        self.optimizer.zero_grad()
        output = models.call(self.model, inputs)
        self.recorder.take("outputs", self.step, dict(_outputs(output)))
        value = self._loss(output, targets)
        value.backward()
        self.optimizer.step()
        return self._number(value)

    def _number(self, loss: Tensor) -> float:
        self.loss_dtype = str(loss.dtype).removeprefix("torch.")
        return float(loss.detach())

    def _loss(self, output: Any, targets: Any) -> Tensor:
        if self.loss is None:
            value = own_loss(self.target, output)
        else:
            value = self.loss(output, targets)
        if isinstance(value, Tensor) and value.dim() == 1 and self.vector_loss:
            # nn.DataParallel gathers scalars into a vector, of which users take the
            # mean: `loss.mean().backward()`.
            return value.mean()
        check_loss(self.target, value)
        checked: Tensor = value
        return checked

    def _before_update(self, optimizer: Any, *_: Any) -> None:
        parameters = self.parameters()
        held = {id(p) for g in optimizer.param_groups for p in g["params"]}
        mine = {n: p for n, p in parameters.items() if id(p) in held}
        self.taken |= dict.fromkeys(mine)
        if mine and self.notes is not None:
            self.notes.begins(optimizer, mine, self.step)
        own = self._parameters({}) if self._others else parameters
        is_other = own.keys().isdisjoint(mine)
        self._has_stepped |= not is_other
        found = _Gradients.of(mine)
        is_known = bool(mine) and any(found.are_of(open_) for open_ in self._open)
        # An optimizer without trained parameters has recorded nothing.
        self._open.append(found if mine else None)
        if is_known:
            return  # an optimizer that hands on to another: one update
        self.on_update()
        if is_other:
            self._record_others(mine)
            return
        self.schedule.append((self.step, group_numbers(optimizer)))
        self.members.append(group_members(optimizer, mine))
        if any(p.grad is not None for p in parameters.values()):
            self._record_gradients(parameters if self.takes_all else mine)
        else:
            self._late |= mine

    def _after_update(self, optimizer: Any, *_: Any) -> None:
        ended = self._open.pop() if self._open else None
        if ended is not None and self.notes is not None:
            self.notes.ends(optimizer, ended.parameters, self.step)
        closes = any(p.grad is not None for p in self._late.values())
        self.closes |= closes
        if closes and self.updates == 0:  # the step may forget them before its end
            self._record_gradients(self.parameters() if self.takes_all else self._late)
        if ended is not None:
            self.after_update(wholes(ended.parameters))

    def _record_others(self, mine: dict[str, Tensor]) -> None:
        if all(p.grad is None for p in mine.values()):
            return
        number, self._other_updates = self._other_updates, self._other_updates + 1
        suffix = f"@{number}" if number else ""
        grads = {name + suffix: p.grad for name, p in mine.items()}
        self.recorder.take(f"{OF_OTHERS}{number}", self.step, wholes(grads))

    def _record_left(self) -> None:
        """Records the gradients at the end of a step in which no update had any."""
        if not self._has_stepped:
            self.bare.append(self.step)
            if self.step in self.unfinished:
                return
        if self.updates == 0:
            everything = self.takes_all or not self._late
            self._record_gradients(self.parameters() if everything else self._late)

    def _record_gradients(self, parameters: dict[str, Tensor]) -> None:
        suffix = f"@{self.updates}" if self.updates else ""
        grads = {
            name + suffix: p.grad
            for name, p in parameters.items()
            if p.requires_grad or p.grad is not None
        }
        self.recorder.take("gradients" + suffix, self.step, wholes(grads))
        self.updates += 1

    def _record_state(self) -> None:
        settle(self.model)
        self._settled = self.parameters()
        self.recorder.take("weights", self.step, dict(wholes(self._settled)))
        buffers = self.names.buffers(self.model)
        self.recorder.take("buffers", self.step, dict(wholes(buffers)))


def split(target: Target, batch: Any) -> tuple[Any, Any]:
    """Returns (inputs, targets) of a batch.

    Raises:
        UsageError: target-no-loss, target-batch-kind.
    """
    made_by = "batch" if tree.num_samples(batch) is None else "collate"
    batch = tree.contents(batch)
    if isinstance(batch, tuple | list) and len(batch) == 2:  # noqa: PLR2004
        if target.loss is None and target.train_step is None:
            raise target_module.missing_loss(target)
        return batch[0], batch[1]
    if isinstance(batch, tree.DICTS) and target.loss is None:
        return batch, None
    kind = f"a {type(batch).__name__}" if batch is not None else "None"
    if isinstance(batch, tuple | list):
        kind += f" of {len(batch)}"
    raise usage_error(
        slug="target-batch-kind",
        message=f"{target.name}: {made_by}() did not return (inputs, targets)",
        expected="a pair (inputs, targets), or a dict where there is no `loss`",
        found=kind,
        fix="return a pair: the model's input, and the targets of the loss"
        + _OR_SAMPLES * (isinstance(batch, list) and target.collate is None),
    )


def batch_size(target: Target, batch: Any) -> int:
    """Returns the number of samples: dim 0 of every tensor leaf.

    Raises:
        UsageError: target-batch-dim0, target-batch-empty.
    """
    if target.train_step is None:
        split(target, batch)
    known = tree.num_samples(batch)
    if known:
        return known
    if target.is_script and len(batch) > 1:
        return batch_size(target, dict(itertools.islice(batch.items(), 1)))
    sizes: dict[int, list[str]] = {}
    for path, leaf in tree.tensors(batch):
        if leaf.dim():
            sizes.setdefault(len(leaf), []).append(path)
    if len(sizes) == 1 and next(iter(sizes)) > 0:
        return next(iter(sizes))
    if not sizes or len(sizes) == 1:
        raise usage_error(
            slug="target-batch-empty",
            message=f"{target.name}: the batch holds no samples",
            expected="tensors whose dimension 0 is the sample",
            found="tensors of length 0" if sizes else _without_tensors(batch),
            fix=_as_tensors(batch),
        )
    found = "; ".join(
        f"{size} in {cut([tree.batch_name(p) for p in paths], 3)}"
        for size, paths in sorted(sizes.items(), reverse=True)[:_MOST_SIZES]
    )
    others = len(sizes) - _MOST_SIZES
    if others > 0:
        found += f"; and {others} other size{'s' * (others > 1)}"
    raise usage_error(
        slug="target-batch-dim0",
        message=f"{target.name}: the batch's tensors disagree on dimension 0",
        expected="the same number of samples in every tensor",
        found=found,
        fix="make dimension 0 the sample everywhere, close over shared tensors; or "
        "let batch() return the list of samples, with def collate(samples)",
    )


def _without_tensors(batch: Any) -> str:
    leaves = [leaf for _, leaf in tree.leaves(batch)]
    named = (
        "numpy arrays" if isinstance(leaf, ndarray) else type(leaf).__name__
        for leaf in leaves
    )
    kinds = list(dict.fromkeys(named))
    return f"no tensor, but {cut(kinds)}" if kinds else "no tensor"


def _as_tensors(batch: Any) -> str:
    is_array = any(isinstance(leaf, ndarray) for _, leaf in tree.leaves(batch))
    told = "return the global batch as tensors"
    return f"{told}: torch.from_numpy(array)" if is_array else told


def own_loss(target: Target, output: Any) -> Any:
    """Returns the loss in a model's own output, as Hugging Face's models have it.

    Raises:
        UsageError: target-no-loss.
    """
    if isinstance(output, tree.DICTS) and "loss" in output:
        return output["loss"]
    if not isinstance(output, tree.DICTS) and hasattr(output, "loss"):
        return output.loss
    raise usage_error(
        slug="target-no-loss",
        message=f"{target.name} defines no `loss`, and the model's output has none",
        expected="def loss(output, target) -> scalar tensor, or output.loss",
        found=f"an output of type {type(output).__name__}",
        fix="define `loss`, or give the model the labels it makes its loss of",
    )


def check_loss(target: Target, value: Any) -> None:
    """Raises the error for an invalid value returned by the loss.

    Raises:
        UsageError: target-loss-scalar, target-loss-gradient.
    """
    if not isinstance(value, Tensor) or value.numel() != 1:
        shape = "None" if value is None else f"a {type(value).__name__}"
        if isinstance(value, Tensor):
            shape = f"a tensor of shape {tuple(value.shape)}"
        raise usage_error(
            slug="target-loss-scalar",
            message=f"{target.name}: the loss is no scalar",
            expected="def loss(output, target) -> scalar tensor",
            found=shape,
            fix="return a tensor of one element: .mean(), or a sum over a count",
        )
    if not value.requires_grad:
        raise usage_error(
            slug="target-loss-gradient",
            message=f"{target.name}: the loss has no gradient",
            expected="a loss that depends on the model's parameters",
            found=f"a {str(value.dtype).removeprefix('torch.')} scalar without a graph",
            fix="remove .detach(), .item(), argmax or no_grad between model and loss",
        )


def _outputs(output: Any) -> Iterator[tuple[str, Tensor]]:
    for path, tensor in tree.tensors(output):
        yield path or "output", tensor


def group_numbers(optimizer: Any) -> list[Group]:
    """Returns the numbers of every parameter group: lr, weight_decay, betas[0], ..."""
    return [
        {name: float(value) for name, value in _values(group) if _is_number(value)}
        for group in getattr(optimizer, "param_groups", [])
    ]


def _values(group: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in group.items():
        if isinstance(value, tuple):
            yield from ((f"{name}[{place}]", one) for place, one in enumerate(value))
        else:
            yield name, value


def group_members(optimizer: Any, parameters: Mapping[str, Tensor]) -> Members:
    """Returns the names of the parameters in every group; () where there is one group.

    Args:
        optimizer: about to update.
        parameters: what it holds, by name.
    """
    groups = getattr(optimizer, "param_groups", [])
    if len(groups) < 2:  # noqa: PLR2004 (nearly always)
        return ()
    names = {id(p): name for name, p in parameters.items()}
    return tuple(
        tuple(names[id(p)] for p in group["params"] if id(p) in names)
        for group in groups
    )


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1
    return isinstance(value, int | float) and not isinstance(value, bool)
