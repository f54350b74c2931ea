"""The global batches of a script: the union of what its ranks drew."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ddpcheck.compare import tree
from ddpcheck.errors import raised
from ddpcheck.errors.problem import UsageError, usage_error
from ddpcheck.run.script.loaders import Key
from ddpcheck.run.script.recording import collate_file, loader_of, step_file, union_file


@dataclass(slots=True)
class Batches:
    """What W ranks drew, by step; read from the folder of their recordings.

    With `collates_shards` rows of a batch are always what collate_fn makes of samples.
    `is_unused`: tells of which keys the batches are of no step.
    """

    folder: Path
    world_size: int
    ahead: Mapping[int, int] = field(default_factory=dict)  # used by a step
    collates_shards: bool = False
    is_unused: Callable[[Key], bool] = lambda _: False

    def of_rank(self, rank: int, step: int) -> dict[str, Any]:
        """Returns what one rank uses in a step: by key, (samples or None, batch)."""
        used = {
            key: one
            for key, one in self._drawn(rank, step).items()
            if loader_of(key) not in self.ahead
        }
        if self.ahead:
            until = [
                one for s in range(step + 1) for one in self._drawn(rank, s).items()
            ]
            for loader, number in self.ahead.items():
                own = [(key, one) for key, one in until if loader_of(key) == loader]
                used |= dict(own[step * number : (step + 1) * number])
        return used

    def _drawn(self, rank: int, step: int) -> dict[str, Any]:
        path = step_file(self.folder, rank, step)
        drawn: dict[str, Any] = torch.load(path, weights_only=False)
        return {key: one for key, one in drawn.items() if not self.is_unused(key)}

    def collates(self) -> dict[int, Callable[[list[Any]], Any]]:
        """Returns the script's own collate functions, by the loader's number."""
        path = collate_file(self.folder)
        if not path.exists():
            return {}
        pickled: dict[int, bytes] = pickle.loads(path.read_bytes())  # noqa: S301
        return {number: pickle.loads(one) for number, one in pickled.items()}  # noqa: S301

    def at(self, step: int) -> dict[str, Any]:
        """Returns the global batch of a step: the ranks' in order of rank.

        By the loader's number and that of the batch in the step, so that what is
        counted in one step is found under the same name in the others.
        """
        drawn = [self.of_rank(rank, step) for rank in range(self.world_size)]
        keys = dict.fromkeys(key for one in drawn for key in one)
        collates, numbers = self.collates(), Counter[int]()
        batch = {}
        for key in keys:
            loader = loader_of(key)
            parts = [one[key] for one in drawn if key in one]
            name = f"{loader}.{numbers[loader]}"
            batch[name] = self._union(key, parts, collates.get(loader))
            numbers[loader] += 1
        return batch

    def _union(
        self,
        key: str,
        parts: list[Any],
        collate: Callable[[list[Any]], Any] | None,
    ) -> Any:
        """Returns the batch of all samples.

        Of a ragged one, with parts of any length, no rows can be taken, only samples.
        """
        samples = [one for one, _ in parts]
        if any(one is None for one in samples):
            return _joined(parts)
        every = [sample for one in samples for sample in one]
        path = union_file(self.folder, key)
        made = torch.load(path, weights_only=False) if path.exists() else None
        odd = {len(leaf) for leaf in tree.held(made) if leaf.dim()} - {len(every)}
        if made is not None and not odd and not self.collates_shards:
            return made
        if collate is None and odd:
            raise _not_joined(f"{len(every)} samples, and tensors of {min(odd)} rows")
        if collate is None:
            return _joined(parts) if made is None else made
        return _collated(every, collate, collates=self.collates_shards)


def _collated(
    samples: list[Any], collate: Callable[[list[Any]], Any], *, collates: bool
) -> Any:
    try:
        batch = tree.Collated.of(samples, collate)
    except Exception as error:
        raise usage_error(
            slug="script-fails",
            message="collate_fn raises where it is given the samples of all ranks",
            expected="one that makes a batch of any number of samples",
            found=": ".join(raised.message(error)[:1]),
            fix="let it take what it needs from its arguments and its own module",
        ) from error
    leaves = [leaf for leaf in tree.held(batch.made) if leaf.dim()]
    is_ragged = any(len(leaf) != len(samples) for leaf in leaves)
    return batch if collates or is_ragged else batch.made


def _joined(parts: list[Any]) -> Any:
    try:
        return joined([batch for _, batch in parts])
    except RuntimeError as error:
        raise _not_joined(str(error).splitlines()[0]) from error


def _not_joined(found: str) -> UsageError:
    return usage_error(
        slug="script-fails",
        message="the ranks' batches cannot be joined to the batch of the single "
        "process",
        expected="tensors that have a row for each sample, and one length on all "
        "ranks; else samples and a collate_fn that can be pickled",
        found=found,
        fix="pad to a fixed length; or make the batch in a collate_fn without objects "
        "that hold locks, files or processes, of samples without them",
    )


def joined(parts: list[Any]) -> Any:
    """Returns batches of the same structure concatenated along dimension 0."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts) if first.dim() else first
    if isinstance(first, tree.DICTS):
        return type(first)({key: joined([p[key] for p in parts]) for key in first})
    if isinstance(first, list) and not tree.held(first):
        return [item for part in parts for item in part]
    if isinstance(first, tuple | list):
        items = [joined([p[i] for p in parts]) for i in range(len(first))]
        if hasattr(first, "_fields"):
            return type(first)(*items)
        return type(first)(items)
    return tree.zipped(parts, joined) if tree.is_container(first) else first
