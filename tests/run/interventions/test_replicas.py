"""Lists and dicts of replicas: separate per replica, then as in a single process."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ddpcheck.run.interventions.replicas import SharedObjects

SIZES = (3, 1)


class _Collecting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.terms: list[Any] = [7.0]
        self.found: dict[str, Any] = {"calls": 1}
        self.names = {"a"}
        self.plain = (1, 2)

    def forward(self, x: Tensor) -> int:
        self.terms.extend([x.mean(), x, x.new_ones(2)])
        self.found["calls"] += 1
        self.found["worst"] = x.max()
        self.names.add(f"rows{len(x)}")
        return len(self.terms)


def test_every_replica_finds_what_was_there_and_rows_are_joined() -> None:
    module = _Collecting()
    terms, found = module.terms, module.found
    shared = SharedObjects(module)
    rows = torch.tensor([[1.0], [2.0], [6.0], [8.0]])
    lengths = [shared.alone(module)(part) for part in rows.split(SIZES)]
    shared.join(SIZES)
    assert lengths == [4, 4]
    assert module.terms is terms
    assert module.found is found
    assert terms[:2] == [7.0, torch.tensor(17 / 4)]
    assert torch.equal(terms[2], rows)
    assert torch.equal(terms[3], torch.ones(2))  # no rows: the last replica's
    assert found == {"calls": 2, "worst": torch.tensor((3 * 6.0 + 8.0) / 4)}
    assert module.names == {"a", "rows1"}


def test_lists_of_other_lengths_are_the_last_replicas() -> None:
    module = _Collecting()
    shared = SharedObjects(module)
    for size in SIZES:
        shared.alone(lambda n: module.terms.extend(range(n)))(size)
    shared.join(SIZES)
    assert module.terms == [7.0, 0]


def test_sizes_that_nobody_knows_leave_the_last_replicas_number() -> None:
    module = _Collecting()
    shared = SharedObjects(module)
    for value in (2.0, 5.0):
        shared.alone(lambda v: module.terms.append(torch.tensor(v)))(value)
    shared.join((0, 0))
    assert module.terms == [7.0, torch.tensor(5.0)]
