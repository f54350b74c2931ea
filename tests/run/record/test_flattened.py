"""Flattened references agree with single ones, or leave the decision to them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ddpcheck.compare import comparison as compare
from ddpcheck.compare.trace import Reader, Writer
from ddpcheck.report.data import Quantity
from ddpcheck.run.record import flattened
from ddpcheck.run.record.recorders import ComparingRecorder
from ddpcheck.run.record.writing import WritingRecorder

Named = dict[str, Tensor | None]
REFERENCES: Named = {
    "a": torch.tensor([[1.0, -2.0], [4.0, 0.0]]),
    "b": torch.tensor(3.0),
    "c": torch.tensor([8.0, -1.0, 2.0]),
}
SCALE = 8.0


def _moved(name: str, place: int, by: float) -> Named:
    found = {n: t.clone() for n, t in REFERENCES.items() if t is not None}
    found[name].view(-1)[place] += by
    return dict(found)


def _laid(references: Named) -> flattened.Flattened:
    made = flattened.flatten(references, SCALE)
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("name", "place", "by", "excess"),
    [
        ("a", 1, 0.5, 0.5 / 10 / 0.1),
        ("a", 3, -0.25, 0.25 / 8 / 0.1),
        ("b", 0, 1.0, 1.0 / 11 / 0.1),
        ("c", 0, 1.5, 1.5 / 16 / 0.1),
        ("c", 2, -0.75, 0.75 / 10 / 0.1),
    ],
)
def test_worst_tensor_is_named_as_the_common_comparison_does(
    name: str, place: int, by: float, excess: float
) -> None:
    candidates = _moved(name, place, by)
    found = _laid(REFERENCES).worst(candidates, rtol=0.1)
    assert found is not None
    usual = compare.is_equal(candidates, REFERENCES, rtol=0.1, scale=SCALE)
    assert found == usual[1:]
    assert found[1] == name
    assert found[0] == pytest.approx(excess)


def test_order_of_the_candidates_does_not_matter() -> None:
    candidates = _moved("b", 0, 1.0)
    turned = dict(reversed(candidates.items()))
    told = [_laid(REFERENCES).worst(c, rtol=0.1) for c in (candidates, turned)]
    assert told[0] == told[1] is not None


def test_trained_weights_of_half_the_precision_are_compared() -> None:
    references: Named = {"w": torch.tensor([1.0, 2.0], dtype=torch.float32)}
    candidates: Named = {"w": torch.nn.Parameter(torch.tensor([1.0, 2.5]))}
    assert _laid(references).worst(candidates, rtol=0.5) == (0.5 / 10 / 0.5, "w")


OTHERS: dict[str, Named] = {
    "beyond the tolerance": _moved("c", 1, 1.0),
    "not a number": _moved("c", 1, math.nan),
    "infinite": _moved("c", 1, math.inf),
    "a name less": {n: t for n, t in REFERENCES.items() if n != "b"},
    "a name more": REFERENCES | {"d": torch.zeros(1)},
    "none": REFERENCES | {"b": None},
    "another shape": REFERENCES | {"a": torch.tensor([1.0, -2.0, 4.0, 0.0])},
    "another dtype": REFERENCES | {"b": torch.tensor(3.0, dtype=torch.float64)},
    "sparse": REFERENCES | {"c": torch.tensor([8.0, -1.0, 2.0]).to_sparse()},
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_takes_a_longer_look_is_left_to_it(name: str) -> None:
    assert _laid(REFERENCES).worst(OTHERS[name], rtol=0.01) is None


@pytest.mark.parametrize("name", [None, *OTHERS])
def test_same_is_what_has_all_numbers(name: str | None) -> None:
    candidates = REFERENCES if name is None else OTHERS[name]
    assert _laid(REFERENCES).is_same(candidates) == (name is None)


@pytest.mark.parametrize(
    "references",
    [
        {},
        {"a": torch.ones(2), "b": None},
        {"a": torch.ones(2), "b": torch.ones(2, dtype=torch.float64)},
        {"a": torch.arange(3)},
        {"a": torch.ones(3, 0)},
    ],
    ids=["empty", "none", "dtypes", "whole numbers", "no elements"],
)
def test_references_of_several_kinds_are_not_laid(references: Named) -> None:
    assert flattened.flatten(references, SCALE) is None


def _reader(folder: Path, groups: dict[str, Named]) -> Reader:
    writer = Writer(folder / "trace")
    for quantity, named in groups.items():
        trained = {n: nn.Parameter(t) for n, t in named.items() if t is not None}
        WritingRecorder(writer).take(quantity, 0, dict(trained))
    writer.close()
    return Reader(folder / "trace")


@pytest.mark.parametrize("quantity", ["gradients", "weights"])
@pytest.mark.parametrize("by", [0.0, 0.5, 2.0, math.nan])
def test_recorder_says_the_same_of_a_small_trace_and_of_a_large_one(
    quantity: str, by: float, tmp_path: Path
) -> None:
    reader, told = _reader(tmp_path, {quantity: REFERENCES}), []
    for reader.is_small in (True, False):
        recorder = ComparingRecorder(reader=reader, rtol=0.1, rank=1, rows=(0, 1, 2))
        recorder.take(quantity, 0, _moved("a", 1, by))
        told.append(recorder.finish(0, None))
    assert bool(reader.kept)
    if by == by:  # noqa: PLR0124 (a difference that is NaN equals no other)
        assert told[0] == told[1]
    assert told[0].quantities[quantity].mismatched == (not by < 2)


@pytest.mark.parametrize(
    ("output", "mismatched"),
    [
        (torch.tensor([[3.0, 4.0], [5.0, 6.0]]), 0),
        (torch.tensor([[3.0, 4.0], [5.0, 6.75]]), 1),
        (torch.tensor([[1.0, 2.0], [3.0, 4.0]]), 1),
    ],
    ids=["equal", "one number", "other rows"],
)
def test_rows_of_a_rank_are_compared_with_its_own(
    output: Tensor, mismatched: int, tmp_path: Path
) -> None:
    whole: Named = {"": torch.arange(1.0, 9.0).view(4, 2)}
    reader, told = _reader(tmp_path, {"outputs": whole}), []
    for reader.is_small in (True, False, True):
        recorder = ComparingRecorder(reader=reader, rtol=0.01, rank=1, rows=(1, 2, 4))
        recorder.take("outputs", 0, {"": output})
        told.append(recorder.finish(0, None))
    assert told[0] == told[1] == told[2]
    assert told[0].quantities["outputs"].mismatched == mismatched
    assert told[0].quantities["outputs"].compared == 1


OF_OTHERS = {"buffer h": "it holds other samples than the rank's shard"}


@pytest.mark.parametrize(
    ("state", "compared", "not_compared"),
    [
        (torch.tensor([[5.0, 6.0], [7.0, 8.0]]), 2, {}),
        (torch.tensor([[5.0, 6.0], [7.0, 8.75]]), 1, OF_OTHERS),
        (torch.tensor([[1.0, 2.0], [3.0, 4.0]]), 1, OF_OTHERS),
    ],
    ids=["the rank's", "one number", "other rows"],
)
def test_rows_left_by_other_samples_are_not_compared(
    state: Tensor, compared: int, not_compared: dict[str, str], tmp_path: Path
) -> None:
    whole = torch.arange(1.0, 9.0).view(4, 2)
    reader = _reader(tmp_path, {"buffers": {"h": whole, "n": torch.ones(3)}})
    recorder = ComparingRecorder(
        reader=reader, rtol=0.01, rank=1, rows=(2, 2, 4), calls_itself=True
    )
    recorder.take("buffers", 0, {"h": state, "n": torch.ones(3)})
    told = recorder.finish(0, None).quantities["buffers"]
    assert (told.compared, told.mismatched) == (compared, 0)
    assert recorder.not_compared == not_compared


def test_leaf_that_one_process_lacks_is_not_compared(tmp_path: Path) -> None:
    reader = _reader(tmp_path, {"outputs": {"a": torch.ones(4, 2)}})
    recorder = ComparingRecorder(reader=reader, rtol=0.01, rank=1, rows=(2, 2, 4))
    recorder.take("outputs", 0, {"a": torch.ones(2, 2), "b": torch.ones(2)})
    assert recorder.finish(0, None).quantities["outputs"].compared == 1
    assert recorder.not_compared == {"output b": "only one side returns it"}


def test_model_without_buffers_has_compared_none(tmp_path: Path) -> None:
    reader = _reader(tmp_path, {"weights": REFERENCES})
    recorder = ComparingRecorder(reader=reader, rtol=0.01, rank=0, rows=(0, 1, 2))
    recorder.take("buffers", 0, {})
    assert recorder.finish(0, None).quantities == {"buffers": Quantity()}


def test_weights_beside_wrong_gradients_tell_how_far_they_moved(tmp_path: Path) -> None:
    groups: dict[str, Named] = {
        "initial": {"w": torch.tensor([1.0, 1.0])},
        "gradients": {"w": torch.tensor([1.0, 2.0])},
        "weights": {"w": torch.tensor([0.75, 0.5])},
    }
    recorder = ComparingRecorder(
        reader=_reader(tmp_path, groups), rtol=0.1, rank=0, rows=(0, 1, 2)
    )
    recorder.take("gradients", 0, {"w": torch.tensor([2.0, 4.0])})
    recorder.take("weights", 0, groups["weights"])
    assert recorder.finish(0, None).least_move == 0.5 / 0.75
