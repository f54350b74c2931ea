"""The global batch of every step as a run uses it, and the shards of a rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ddpcheck.compare import tree
from ddpcheck.compare.digests import digest
from ddpcheck.compare.trace import as_dense
from ddpcheck.errors import raised
from ddpcheck.errors.problem import UsageError, usage_error
from ddpcheck.ranks import devices
from ddpcheck.run.facts import ReferenceFacts, Samples
from ddpcheck.run.intervention import GlobalLoss, Switch, found, substituted
from ddpcheck.run.interventions.rows.gather import alone
from ddpcheck.run.model import model as models
from ddpcheck.run.model import user_code
from ddpcheck.run.modes.jobs import rounding
from ddpcheck.run.modes.registry import mode_of
from ddpcheck.run.observe import samples
from ddpcheck.run.spec import NATIVE, RunSpec
from ddpcheck.run.steps import batch_size
from ddpcheck.target.target import Target

# Part of torch's error in a process whose parent has called CUDA's driver.
_IN_FORK = "in forked subprocess"
# Parts of torch's errors without CUDA support, or without a GPU.
_NO_GPU = ("not compiled with CUDA", "Found no NVIDIA driver", "No CUDA GPUs")


def batches_of(target: Target, spec: RunSpec) -> list[Any]:
    """Returns the global batch of every step, in the dtype and place of the run.

    Raises:
        UsageError: target-raises.
    """
    try:
        batches = [_on_cpu(batch) for batch in user_code.batches(target, spec)]
    except Exception as error:
        if isinstance(error, UsageError) or raised.is_own(error):
            raise
        raise does_not_train(target, error) from error
    if spec.constants != NATIVE:
        batches = [models.cast_batch(b, spec.dtype) for b in batches]
    if spec.rows:
        batches = [tree.rows(b, slice(spec.rows)) for b in batches]
    if spec.shuffle:
        batches = [_sorted(b, batch_size(target, b)) for b in batches]
    if spec.order:
        batches = [_ordered(b, batch_size(target, b), spec.order) for b in batches]
    if spec.tile:
        batches = [_tiled(b, spec.tile) for b in batches]
    batches = [_in_order(b, order_of(spec, batch_size(target, b))) for b in batches]
    if spec.device != "cpu":
        batches = [tree.replace(b, lambda _, t: t.to(spec.device)) for b in batches]
    return batches


def check_collate(target: Target, batches: list[Any]) -> None:
    """Checks that `collate` returns the same data for the same samples.

    Raises:
        UsageError: target-batch-unseeded.
    """
    first = [b for b in batches[:1] if isinstance(b, tree.Collated)]
    if digests(first) == digests([b.rows(slice(None)) for b in first]):
        return
    raise usage_error(
        slug="target-batch-unseeded",
        message=f"{target.name}: collate() is not seeded: "
        "two calls return different data",
        expected="the same batch of the same samples from every call",
        found="two calls of collate() on the samples of the first batch differ",
        fix="draw in batch(), from generators that it seeds",
    )


def digests(batches: list[Any]) -> Samples:
    """Returns digests of each part of each batch, for comparison between processes."""
    return tuple(
        {
            tree.batch_name(path): digest({path: leaf})
            for path, leaf in tree.tensors(batch)
        }
        for batch in batches
    )


def given(batches: list[Any], lists: list[str]) -> ReferenceFacts:
    """Returns facts of the batches; `lists`: those that are not sharded."""
    return {"samples": digests(batches), "lists": lists, "alike": _are_alike(batches)}


def has_masked(batches: list[Any]) -> bool:
    """Returns whether any entry of any tensor is -100 or NaN, as a mask's are."""
    from ddpcheck.target.entries import is_valid  # noqa: PLC0415 (only where asked for)

    leaves = (as_dense(t) for b in batches for t in tree.held(b))
    return any(not bool(is_valid(leaf).all()) for leaf in leaves)


def _are_alike(batches: list[Any]) -> bool:
    """Returns whether all samples are equal, in every step."""
    rows = (as_dense(t) for b in batches for t in tree.held(b) if t.dim())
    return all(torch.equal(leaf[1:], leaf[:-1]) for leaf in rows)


def _on_cpu(batch: Any) -> Any:
    """Returns the batch where all runs begin, also one that is made on a GPU."""
    if all(leaf.is_cpu for leaf in tree.held(batch)):
        return batch
    return tree.replace(batch, lambda _, leaf: leaf.cpu())


def _tiled(batch: Any, copies: int) -> Any:
    """Returns the batch with every shard replaced by the first one."""
    first = tree.shard(batch, 0, copies)
    size = tree.num_samples(first)
    if size is None:
        size = next((len(t) for t in tree.held(first) if t.dim()), 0)
    return tree.rows(first, torch.arange(size).repeat(copies))


def _sorted(batch: Any, size: int) -> Any:
    """Returns the samples in the order of their integer values, masks and labels.

    Shards then hold as different counts as they can; where no integers differ, a
    random order.
    """
    keys = torch.zeros(size, dtype=torch.float64)
    for leaf in tree.held(batch):
        if leaf.dim() and len(leaf) == size and not leaf.is_floating_point():
            values = as_dense(leaf.abs() if leaf.is_complex() else leaf)
            keys += values.reshape(size, -1).double().mean(1)
    is_flat = bool((keys == keys[0]).all())
    return tree.permute(batch, _permutation(size) if is_flat else keys.argsort())


def _ordered(batch: Any, size: int, seed: int) -> Any:
    """Returns the samples in the random order of a seed."""
    generator = torch.Generator().manual_seed(seed)
    return tree.permute(batch, torch.randperm(size, generator=generator))


def order_of(spec: RunSpec, size: int) -> torch.Tensor | None:
    """Returns the order of the samples that RunSpec.permute asks for, if any."""
    if spec.permute <= 1:
        return _permutation(size) if spec.permute else None
    return torch.cat(torch.arange(size).tensor_split(spec.permute)[::-1])


def _in_order(batch: Any, order: torch.Tensor | None) -> Any:
    return batch if order is None else tree.permute(batch, order)


def _permutation(size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.randperm(size, generator=generator)


def does_not_train(
    target: Target, error: Exception, hint: str | None = None
) -> UsageError:
    """Returns the usage error for user code that raises in the single-process run."""
    if _IN_FORK in raised.text_of(error):
        return devices.starts_cuda(target.name, "a call that asks CUDA's driver")
    if target.train_step is None and "closure" in raised.text_of(error):
        return _wants_closure(target, error)
    home = Path(target.path).absolute().parent if target.path else Path.cwd()
    return usage_error(
        slug="target-raises",
        message=f"{target.name}: training fails in a single process",
        expected="model, batch, loss and optimizer that do three steps",
        found=raised.in_words(error, home),
        fix=hint or _fix(error),
        stack=raised.stack(error),
    )


def _wants_closure(target: Target, error: Exception) -> UsageError:
    """Returns the error for an optimizer that recomputes the loss itself.

    Its closure returns the rank's loss or the mean over ranks, which decides whether
    ranks take the same steps: only the target can define it.
    """
    return usage_error(
        slug="target-optimizer-closure",
        message=f"{target.name}: the optimizer's step needs a closure",
        expected="def train_step(model, optimizer, batch), which has the closure",
        found=first_line(error),
        fix="write train_step with optimizer.step(closure); the page has one",
        stack=raised.stack(error),
    )


def _fix(error: Exception) -> str:
    if isinstance(error, torch.OutOfMemoryError):
        return "a smaller batch or model, --dtype float32, or a larger GPU"
    if any(sign in raised.text_of(error) for sign in _NO_GPU):
        return "leave .cuda() and the like out: --device cuda moves model and batch"
    if "same device" in raised.text_of(error):
        return "make constants where they are used: torch.arange(n, device=x.device)"
    return "make one plain training step work first"


def first_line(error: BaseException) -> str:
    """Returns the first line of an exception's message."""
    text = raised.text_of(error).strip()
    return text.splitlines()[0] if text else ""


def global_batches(target: Target, spec: RunSpec) -> list[Any]:
    """Returns the global batch of every step, as the target returns it on this rank."""
    if Switch.BATCH_WITHOUT_GROUP not in spec.fixes:
        return batches_of(target, spec)
    given: list[Any] = alone(batches_of, target, spec)
    return given


def batches_of_rank(batches: list[Any], spec: RunSpec, rank: int) -> list[Any]:
    """Returns this rank's shard of every step; in a single process the whole batch."""
    sees_all = found(spec.fixes, GlobalLoss) or (
        substituted(spec.fixes, "batches") is not None
    )
    if not mode_of(spec.mode).is_ranks or sees_all:
        return [rounding.jittered(batch, spec.jitter) for batch in batches]
    if Switch.SHARDED_LISTS in spec.fixes:
        batches = [_with_cut_lists(batch, rank, spec.world_size) for batch in batches]
    if Switch.STRIDED_SHARDS in spec.fixes:
        return [tree.strided_shard(batch, rank, spec.world_size) for batch in batches]
    return [tree.shard(batch, rank, spec.world_size) for batch in batches]


def _with_cut_lists(batch: Any, rank: int, world_size: int) -> Any:
    if tree.num_samples(batch) is not None:
        return batch
    size = next(len(t) for t in tree.held(batch) if t.dim())
    start, rows = tree.shard_range(size, rank, world_size)
    paths = samples.lists_of_numbers(batch, size)
    return tree.cut_lists(batch, paths, slice(start, start + rows))
