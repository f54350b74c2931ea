"""Applies `Substitute` on a rank: it gets single-process values at a boundary.

The single-process run recorded them. "start", "state", "writes", "gradients" and
"schedule" are here; `addends` and `orders` have files of their own.

"writes" answers whether buffers that ranks write differently are all that is wrong,
even where the same step goes on to read them: loss and forward may then be right.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ddpcheck.compare import tree
from ddpcheck.compare.trace import Reader
from ddpcheck.run import intervention
from ddpcheck.run.facts import Group, Members, of_trace
from ddpcheck.run.intervention import GlobalLoss, GlobalLossOfOutputs
from ddpcheck.run.interventions import apply as fixes
from ddpcheck.run.interventions import rewriting
from ddpcheck.run.interventions.rows import global_batch
from ddpcheck.run.interventions.substitutes import addends, orders
from ddpcheck.run.model import model as models
from ddpcheck.run.model.names import Names
from ddpcheck.run.process.modes import DispatchMode
from ddpcheck.run.process.replacing import replaced
from ddpcheck.run.record import flattened
from ddpcheck.run.record.facts import reference_start
from ddpcheck.run.record.recorders import ComparingRecorder
from ddpcheck.run.spec import RunSpec
from ddpcheck.run.steps import group_members, split
from ddpcheck.run.surroundings import loss_function
from ddpcheck.target.target import Target

Loss = Callable[[Any, Any], Any]


def _arguments(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
    return args, kwargs


@dataclass(frozen=True, slots=True, kw_only=True)
class Substitutes:
    """Applies the substitutes of a rank's run, each at its place.

    `bare` is the model inside its wrapper, `batches` the global ones, `rows` this
    rank's (first, number, of all), `step` returns the current one, from 0.
    """

    target: Target
    spec: RunSpec
    reader: Reader
    bare: nn.Module
    batches: list[Any]
    rows: tuple[int, int, int]
    step: Callable[[], int]
    is_rank: bool  # has a shard; else the global batch

    def around_model(self, wrapped: nn.Module, names: Names) -> nn.Module:
        """Returns the model to train, which may begin as another or see all rows."""
        chosen = self.spec.fixes
        asks = intervention.substituted(chosen, "start") is not None
        initial = reference_start(self.reader, names) if asks else {}
        wrapped = fixes.after_wrap(wrapped, chosen, initial)
        what = intervention.found(chosen, GlobalLoss)
        if what is None:
            return wrapped
        given = wrapped, self.bare, what, self.rows[:2], self._collated
        return global_batch.global_loss(*given)

    def start_again(self, wrapped: nn.Module, names: Names) -> None:
        """Gives all ranks the first weights, where an intervention does, once more."""
        if intervention.substituted(self.spec.fixes, "start") is not None:
            initial = reference_start(self.reader, names)
            rewriting.broadcast(wrapped, initial)

    def _collated(self) -> global_batch.Own | None:
        """Returns the model's arguments for all samples and for the rank's samples."""
        batch = self.batches[self.step()]
        if not isinstance(batch, tree.Collated) or self.target.train_step is not None:
            return None
        start, rows, total = self.rows
        own = batch.rows(slice(start, start + rows))
        inputs = (split(self.target, each)[0] for each in (batch, own))
        whole, mine = (models.call(_arguments, each) for each in inputs)
        return whole, mine, total

    def loss(self) -> Loss | None:
        """Returns the loss to train with, None where the target's own step has it."""
        loss, chosen = loss_function(self.target, self.spec), self.spec.fixes
        some = [fix for fix in chosen if isinstance(fix, GlobalLossOfOutputs)]
        if loss is not None and some:
            rows, targets = self.rows[1], self._global_targets
            return global_batch.partly_global(loss, some, rows, targets)
        if loss is None or intervention.found(chosen, GlobalLoss) is None:
            return loss
        return global_batch.without_process_group(loss)

    def _global_targets(self) -> Any:
        return split(self.target, self.batches[self.step()])[1]

    @contextlib.contextmanager
    def around_steps(
        self, model: nn.Module, parameters: Callable[[], Mapping[str, Tensor]]
    ) -> Iterator[None]:
        """Substitutes what the single-process run recorded of its steps.

        `parameters` returns the trained tensors by name.
        """
        chosen = self.spec.fixes
        facts = of_trace(self.reader.index)
        numbers = intervention.addends(chosen)
        with contextlib.ExitStack() as stack:
            if intervention.substituted(chosen, "schedule") is not None:
                entry = facts["schedule"], facts["members"], parameters
                stack.enter_context(_substituted_schedule(*entry))
            if intervention.substituted(chosen, "orders") is not None:
                stack.enter_context(orders.substituted(facts["orders"], self.step))
            if numbers and self.is_rank:
                quantities = addends.substituted(
                    (model, self.bare),
                    self.bare,
                    self.reader,
                    self.step,
                    numbers,
                    self.rows,
                    self.spec.world_size,
                )
                stack.enter_context(quantities)
            written = intervention.substituted(chosen, "writes")
            if written:
                given = substituted_writes(self.bare, self.reader, self.step, written)
                stack.enter_context(given)
            yield

    def after_step(self, model: nn.Module, names: Names) -> None:
        """Overwrites untrained state if "state" is substituted."""
        modules = intervention.substituted(self.spec.fixes, "state")
        if modules:
            substitute_state(model, names, self.reader, self.step(), modules)


def substitute_state(
    model: nn.Module, names: Names, reader: Reader, step: int, modules: Container[str]
) -> None:
    """Overwrites buffers and untrained parameters of these modules after a step."""
    parameters = names.parameters(model).items()
    for quantity, named in {
        "buffers": names.buffers(model),
        "weights": {n: p for n, p in parameters if not p.requires_grad},
    }.items():
        for name, tensor in named.items():
            reference = reader.find(quantity, step, name)
            if name.rpartition(".")[0] in modules and reference is not None:
                tensor.data.copy_(reference)


@contextlib.contextmanager
def substituted_writes(
    model: nn.Module, reader: Reader, step: Callable[[], int], modules: Container[str]
) -> Iterator[None]:
    """Makes every write to a buffer of these modules write the single-process value.

    That is its value at the end of the step. `step` returns the current one, from 0.
    A write that changes nothing, as DDP's broadcast of equal buffers, is left alone.
    """
    writes = _Writes(model, reader, step, modules)
    assign = nn.Module.__setattr__

    def assigning(module: nn.Module, name: str, value: Any) -> None:
        assign(module, name, value)
        if isinstance(value, Tensor) and name in module.__dict__.get("_buffers", ()):
            writes.written(value)

    with writes, replaced(nn.Module, __setattr__=assigning):
        yield


class _Writes(DispatchMode):
    """Sets buffers to single-process values after operations that write to them."""

    def __init__(
        self,
        model: nn.Module,
        reader: Reader,
        step: Callable[[], int],
        modules: Container[str],
    ) -> None:
        super().__init__()
        self._model, self._names = model, Names(model)
        self._reader, self._step, self._modules = reader, step, modules
        self._first = {n: b.clone() for n, b in self._buffers().items()}

    def called(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Calls the operation; its schema names the arguments that it writes to."""
        made = func(*args, **kwargs)
        schema = getattr(func, "_schema", None)
        for place, argument in enumerate(getattr(schema, "arguments", ())):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = kwargs.get(argument.name)
                self.written(args[place] if place < len(args) else value)
        return made

    def written(self, value: Any) -> None:
        """Sets buffers in the same memory as the tensors to single-process values."""
        if isinstance(value, (list, tuple)):
            for each in value:
                self.written(each)
            return
        if not isinstance(value, Tensor):
            return
        for name, buffer in self._buffers().items():
            is_same = _address(buffer) == _address(value)
            if is_same and not self._is_as_before(name, buffer):
                recorded = self._reader.find("buffers", self._step(), name)
                if recorded is not None and recorded.shape == buffer.shape:
                    buffer.data.copy_(recorded)

    def _buffers(self) -> dict[str, Tensor]:
        found = self._names.buffers(self._model)
        return {n: b for n, b in found.items() if n.rpartition(".")[0] in self._modules}

    def _is_as_before(self, name: str, buffer: Tensor) -> bool:
        step = self._step()
        before = self._reader.find("buffers", step - 1, name) if step else None
        before = self._first.get(name) if before is None else before
        return before is not None and torch.equal(before.to(buffer), buffer)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@dataclass(frozen=True, slots=True)
class SubstitutingRecorder:
    """Overwrites gradients with the reference's before an update uses them."""

    recorder: ComparingRecorder

    def take(self, quantity: str, step: int, named: dict[str, Tensor | None]) -> None:
        """Overwrites gradients that both sides have, then compares the group."""
        if quantity.startswith("gradients"):
            references = flattened.group(self.recorder.reader, quantity, step)
            for name, tensor in named.items():
                reference = references.get(name)
                if tensor is not None and reference is not None:
                    tensor.detach().copy_(reference)
        self.recorder.take(quantity, step, named)


@contextlib.contextmanager
def _substituted_schedule(
    updates: Sequence[tuple[int, list[Group]]],
    grouped: Sequence[Members],
    parameters: Callable[[], Mapping[str, Tensor]],
) -> Iterator[None]:
    """Runs the k-th update of the run with the numbers of `updates[k]`.

    Args:
        updates: (step, numbers of every group) of the single-process run, in order.
        grouped: the parameters in each of these groups, per update.
        parameters: returns the trained tensors of this run, by name.
    """
    schedule = _Schedule(list(zip(updates, grouped, strict=True)), parameters)
    with (
        register_optimizer_step_pre_hook(schedule.before_update),
        register_optimizer_step_post_hook(schedule.after_update),
    ):
        yield


@dataclass(slots=True)
class _Schedule:
    """The single-process numbers, applied during the updates of a run."""

    left: list[tuple[tuple[int, list[Group]], Members]]
    parameters: Callable[[], Mapping[str, Tensor]]
    # The original groups of an optimizer whose groups are replaced during its update.
    own: list[dict[str, Any]] = field(default_factory=list)

    def before_update(self, optimizer: Any, *_: Any) -> None:
        """Sets the optimizer's numbers, and its groups if they differ."""
        if not self.left:
            return
        groups = getattr(optimizer, "param_groups", [])
        (_step, numbers), names = self.left[0]
        if group_members(optimizer, self.parameters()) != names:
            others = _grouped(groups, numbers, names, self.parameters())
            if others is not None:
                self.own, groups[:] = list(groups), others
        if len(numbers) != len(groups):
            return
        self.left.pop(0)
        for group, wanted in zip(groups, numbers, strict=True):
            for name, value in wanted.items():
                _put(group, name, value)

    def after_update(self, optimizer: Any, *_: Any) -> None:
        """Restores the original groups, which a scheduler relies on."""
        if self.own:
            optimizer.param_groups[:] = self.own
            self.own = []


def _grouped(
    groups: list[dict[str, Any]],
    numbers: list[Group],
    names: Members,
    parameters: Mapping[str, Tensor],
) -> list[dict[str, Any]] | None:
    """Returns the single-process groups, None if the parameters differ."""
    held = {id(p) for group in groups for p in group["params"]}
    theirs = names or (tuple(n for n, p in parameters.items() if id(p) in held),)
    here = [[parameters[n] for n in each if n in parameters] for each in theirs]
    if {id(p) for each in here for p in each} != held or len(theirs) != len(numbers):
        return None
    return [{**groups[0], "params": each} for each in here]


def _put(group: dict[str, Any], name: str, value: float) -> None:
    whole, _, place = name.removesuffix("]").partition("[")
    if place and isinstance(group.get(whole), tuple):
        items = list(group[whole])
        items[int(place)] = value
        group[whole] = tuple(items)
    elif isinstance(group.get(name), Tensor):
        group[name].fill_(value)
    elif name in group:
        group[name] = type(group[name])(value)
