"""The scale at which a difference of a buffer is rounding."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn

from ddpcheck.compare import comparison as compare
from ddpcheck.compare.trace import Writer
from ddpcheck.report.data import Quantity
from ddpcheck.run.facts import BufferKind
from ddpcheck.run.record import scales


def test_buffers_of_one_name_have_one_scale() -> None:
    named: dict[str, Tensor | None] = {
        "a.running_mean": torch.tensor([3.0, -5.0]),
        "b.running_mean": torch.tensor([1e-17, 0.0]),
        "b.running_var": torch.tensor([49.0, 4.0]),
        "b.num_batches_tracked": torch.tensor(3),
        "queue": torch.tensor([2.0]),
        "c.empty": torch.empty(0),
        "c.none": None,
    }
    assert scales.of_buffers(named, {}) == {
        "a.running_mean": 5.0,
        "b.running_mean": 7.0,  # the deviation of the values that it averages
        "b.running_var": 49.0,
        "queue": 2.0,
    }


def test_mean_that_is_zero_by_construction_differs_by_its_rounding_alone() -> None:
    reference: dict[str, Tensor | None] = {
        "running_mean": torch.tensor([2e-17]),
        "running_var": torch.tensor([4.0]),
        "num_batches_tracked": torch.tensor(1),
    }
    of_each = scales.of_buffers(reference, {})

    def judged(**changes: Tensor) -> Quantity:
        return compare.compare_group(
            reference | changes, reference, rtol=1e-9, scale=of_each, step=0
        )

    assert judged(running_mean=torch.tensor([-3e-17])).mismatched == 0
    shifted = judged(running_mean=torch.tensor([1e-8])).worst
    assert shifted is not None
    assert shifted.name == "running_mean"
    assert math.isclose(shifted.excess, 5.0, rel_tol=1e-6)
    assert judged(num_batches_tracked=torch.tensor(2)).mismatched == 1


def test_scale_is_that_of_one_class_and_of_what_changes() -> None:
    named: dict[str, Tensor | None] = {
        "input.mean": torch.tensor(1e9),  # of another class
        "fixed.mean": torch.tensor(1e6),  # a constant
        "a.mean": torch.tensor(0.5),
        "b.mean": torch.tensor(1e-17),
        "zero.mean": torch.tensor(0.0),
    }
    known = dict.fromkeys(named, BufferKind("Score", changes=True)) | {
        "input.mean": BufferKind("Input", changes=True),
        "fixed.mean": BufferKind("Score", changes=False),
        "zero.mean": BufferKind("Score", changes=False),
    }
    assert scales.of_buffers(named, known) == {
        "input.mean": 1e9,
        "fixed.mean": 1e6,
        "a.mean": 0.5,
        "b.mean": 0.5,
        "zero.mean": 0.5,
    }


def test_kinds_are_the_owners_class_and_whether_training_changes_it(
    tmp_path: Path,
) -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2).eval())
    writer = Writer(tmp_path / "trace")
    writer.add("initial_buffers", 0, model.named_buffers())
    for step in range(2):
        if step:  # not in the first step
            model(torch.arange(6.0).reshape(3, 2))
        writer.add("buffers", step, model.named_buffers())
    found = scales.kinds(writer, model, 2)
    assert list(found) == [name for name, _ in model.named_buffers()]
    owners = {kind.owner for kind in found.values()}
    assert owners == {"torch.nn.modules.batchnorm.BatchNorm1d"}
    assert [kind.changes for kind in found.values()] == [True] * 3 + [False] * 3
    writer.discard()
