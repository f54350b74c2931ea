"""Training steps that reduce in all the ways DDP knows, and some that cannot be played.

Called by name in ranks: `target(kind)`.
"""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import all_gather_into_tensor, get_world_size, is_initialized
from torch.nn.parallel import DistributedDataParallel

from ddpcheck.target.target import Target

SIZE = 12


class Net(nn.Module):
    """A batch norm, a head that only some rows use, and a counter."""

    def __init__(self, *, norm: bool = False, head: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6) if norm else nn.Identity()
        self.last = nn.Linear(6, 1)
        self.head = nn.Linear(6, 1) if head else None
        self.drop = nn.Dropout(0.3)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """Returns one number per row, other in every call of a step."""
        self.calls += 1
        hidden = self.drop(self.norm(self.first(x)).tanh())
        out: Tensor = self.last(hidden) * self.calls
        if self.head is not None and bool(x[0, 0] > 0):
            out = out + self.head(hidden)
        return out


class Pair(nn.Module):
    """Two models in one, each wrapped for itself or both together."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.maker = nn.Linear(4, 4)
        self.critic = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns what both make of the rows, apart from each other."""
        return self.maker(x).sum(1, keepdim=True), self.critic(x)


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Returns rows whose sign differs between shards."""
    noise = torch.Generator().manual_seed(step)
    x = torch.randn(SIZE, 4, generator=noise)
    x[:, 0] = torch.linspace(-1, 1, SIZE)
    return x, x.sum(1, keepdim=True) ** 2


def loss(output: Tensor, target: Tensor) -> Tensor:
    """Returns the mean squared error."""
    return nn.functional.mse_loss(output, target)


def _net(**options: bool) -> Any:
    def model() -> nn.Module:
        net = Net(**options)
        net.drop.p = 0.0
        return net

    return model


def _adamw(params: Any) -> torch.optim.Optimizer:
    # The gradient of a bias before a norm is rounding: epsilon keeps it small.
    return torch.optim.AdamW(params, lr=1e-2, eps=1e-3)


def clipped(model: nn.Module, optimizer: Any, rows: Any) -> Tensor:
    """Clips what DDP has reduced; keeps its gradients for the next step."""
    value = loss(model(rows[0]), rows[1])
    value.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return value


def accumulated(model: Any, optimizer: Any, rows: Any) -> None:
    """Reduces in each of two backwards, and clips in between."""
    optimizer.zero_grad()
    for part in range(2):
        x, y = (t[part::2] for t in rows)
        loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()


def unsynchronised(model: Any, optimizer: Any, rows: Any) -> None:
    """Reduces in the second backward only."""
    optimizer.zero_grad()
    if isinstance(model, DistributedDataParallel):
        with model.no_sync():
            loss(model(rows[0][::2]), rows[1][::2]).backward()
    else:
        loss(model(rows[0][::2]), rows[1][::2]).backward()
    loss(model(rows[0][1::2]), rows[1][1::2]).backward()
    optimizer.step()


def twice(model: Any, optimizer: Any, rows: Any) -> None:
    """Updates twice a step: the second forward sees the first update."""
    for part in range(2):
        optimizer.zero_grad()
        loss(model(rows[0][part::2]), rows[1][part::2]).backward()
        optimizer.step()


def _times_world(output: Tensor, target: Tensor) -> Tensor:
    return loss(output, target) * (get_world_size() if is_initialized() else 1)


def _gathered(output: Tensor, target: Tensor) -> Tensor:
    if is_initialized():
        all_gather_into_tensor(torch.empty(get_world_size()), torch.ones(1))
    return loss(output, target)


def _caught(output: Tensor, target: Tensor) -> Tensor:
    count = torch.tensor(float(len(target)))
    with contextlib.suppress(Exception):  # as users write it for a single process
        dist.all_reduce(count)
    return (output - target).pow(2).sum() / count


def _with_own_buffers(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model, broadcast_buffers=False)


def _with_hook(model: nn.Module) -> nn.Module:
    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(None, lambda *_: None)
    return wrapped


def _finding_unused(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model, find_unused_parameters=True)


def scheduled(model: Any, optimizer: Any, rows: Any) -> None:
    """Lowers the learning rate, and appends the previous one to a list of the model."""
    inner = getattr(model, "module", model)
    inner.rates = [*getattr(inner, "rates", []), len(getattr(inner, "rates", []))]
    for group in optimizer.param_groups:
        group["lr"] *= 0.7 + 0.1 * len(inner.rates)
    optimizer.zero_grad()
    loss(model(rows[0]), rows[1]).backward()
    optimizer.step()


def copied(model: Any, optimizer: Any, rows: Any) -> None:
    """Trains towards the output of a copy of the wrapper from the previous step."""
    teacher = copy.deepcopy(model).eval()
    with torch.no_grad():
        goal = teacher(rows[0])
    optimizer.zero_grad()
    (loss(model(rows[0]), rows[1]) + loss(model(rows[0]), 0.5 * goal)).backward()
    optimizer.step()


def copied_with_gradients(model: Any, optimizer: Any, rows: Any) -> None:
    """Asks a copy of the wrapper for gradients, which no optimizer has."""
    optimizer.zero_grad()
    loss(copy.deepcopy(model)(rows[0]), rows[1]).backward()
    loss(model(rows[0]), rows[1]).backward()
    optimizer.step()


def searched(model: Any, optimizer: Any, rows: Any) -> None:
    """Asks for the loss several times a step; the optimizer keeps lists."""

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(model(rows[0]), rows[1])
        value.backward()
        return value

    optimizer.step(closure)


def adversarial(model: Any, optimizer: Any, rows: Any) -> None:
    """Trains the critic, then the maker through it: two wrappers, two optimizers."""
    x, y = rows
    (other,) = optimizer.others
    other.zero_grad()
    made = model.maker(x)
    loss(model.critic(made.detach()), y).backward()
    other.step()
    optimizer.zero_grad()
    loss(model.critic(model.maker(x)), y).backward()
    optimizer.step()


def in_parts(model: Any, optimizer: Any, rows: Any) -> None:
    """Reaches some of the parameters in each backward of one reduction."""
    optimizer.zero_grad()
    for output in model(rows[0]):
        loss(output, rows[1]).backward()
    optimizer.step()


def _frozen_later(model: Any) -> nn.Module:
    wrapped = DistributedDataParallel(model)
    model.first.bias.requires_grad_(False)
    return wrapped


def _wrapped_apart(pair: Any) -> Any:
    pair.maker = DistributedDataParallel(pair.maker)
    pair.critic = DistributedDataParallel(pair.critic)
    return pair


def _two_adams(params: Any) -> Any:
    held = list(params)
    made: Any = torch.optim.Adam(held[:2], lr=1e-2)
    made.others = [torch.optim.Adam(held[2:], lr=1e-2)]  # in a list, which is not found
    return made


def _lbfgs(params: Any) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(params, lr=0.1, max_iter=2)


def _dropping() -> nn.Module:
    return Net()


_KINDS: dict[str, dict[str, Any]] = {
    "clipped": {"train_step": clipped, "optimizer": _adamw},
    "accumulated": {"train_step": accumulated, "optimizer": _adamw},
    "unsynchronised": {"train_step": unsynchronised, "model": _net(norm=True)},
    "twice": {"train_step": twice, "optimizer": _adamw, "model": _net(norm=True)},
    "scheduled": {"train_step": scheduled},
    "copied": {"train_step": copied},
    "copied-with-gradients": {"train_step": copied_with_gradients},
    "copied-buffers": {"train_step": copied, "model": _net(norm=True)},
    "searched": {"train_step": searched, "optimizer": _lbfgs},
    "adversarial": {
        "model": Pair,
        "wrap": _wrapped_apart,
        "optimizer": _two_adams,
        "train_step": adversarial,
    },
    "in-parts": {"model": Pair, "train_step": in_parts},
    "times-world": {"loss": _times_world},
    "head": {"model": _net(head=True), "wrap": _finding_unused},
    "head-not-found": {"model": _net(head=True), "wrap": DistributedDataParallel},
    "frozen-later": {"wrap": _frozen_later},
    "dropout": {"model": _dropping},
    "gathered": {"loss": _gathered},
    "caught": {"loss": _caught},
    "own-buffers": {"model": _net(norm=True), "wrap": _with_own_buffers},
    "hook": {"wrap": _with_hook},
}


def target(kind: str) -> Target:
    """Returns one of the targets."""
    parts = {"model": _net(), "loss": loss, **_KINDS[kind]}
    return Target(name=kind, batch=batch, **parts)
