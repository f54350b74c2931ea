"""Walking nested values, and shards that make up the batch."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ddpcheck.compare import tree


class Boxes(NamedTuple):
    corners: Tensor
    labels: Tensor


class _Scaled(NamedTuple):
    value: Tensor
    signed_t: Tensor


class Scaled(_Scaled):
    """As brevitas's QuantTensor: made from other arguments than its fields."""

    def __new__(cls, value: Tensor, *, signed: bool) -> Scaled:  # noqa: PYI034
        return super().__new__(cls, value, torch.tensor(signed))


@dataclass(frozen=True)
class Output:
    logits: Tensor
    hidden: tuple[Tensor, ...]
    note: str = "kept"


@dataclass
class Library(OrderedDict):  # type: ignore[type-arg]
    """As Hugging Face's ModelOutput: a mapping and a dataclass."""

    loss: Tensor | None = None

    def __post_init__(self) -> None:
        self["loss"] = self.loss


class Opaque:
    pass


def _value() -> dict[str, Any]:
    return {
        "x": torch.arange(6.0).reshape(3, 2),
        "more": [torch.zeros(3), (torch.ones(3, 1), 7)],
        "boxes": Boxes(corners=torch.zeros(3, 4), labels=torch.arange(3)),
        "output": Output(logits=torch.ones(3, 5), hidden=(torch.zeros(3),)),
        "none": None,
    }


def test_tensors_are_named_by_their_path() -> None:
    assert [path for path, _ in tree.tensors(_value())] == [
        "x",
        "more.0",
        "more.1.0",
        "boxes.corners",
        "boxes.labels",
        "output.logits",
        "output.hidden.0",
    ]
    assert [path for path, _ in tree.tensors(torch.ones(2))] == [""]


@pytest.mark.parametrize(
    "value",
    [_value(), Scaled(torch.zeros(2), signed=True), Library(loss=torch.ones(1)), 7],
    ids=["all-kinds", "own-tuple", "library", "none"],
)
def test_held_are_the_tensors_without_their_paths(value: Any) -> None:
    held = tree.held([value, value])
    named = [tensor for _, tensor in tree.tensors([value, value])]
    assert list(map(id, held)) == list(map(id, named))


def test_replace_keeps_every_type_and_plain_value() -> None:
    value = _value()
    new = tree.replace(value, lambda _, t: t + 1)
    assert type(new["boxes"]) is Boxes
    assert type(new["output"]) is Output
    assert new["output"].note == "kept"
    assert new["more"][1][1] == 7
    assert new["x"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert value["x"].tolist() == [[0, 1], [2, 3], [4, 5]]


def test_replace_of_a_named_tuple_calls_no_constructor_of_its_own() -> None:
    value = Scaled(torch.ones(2), signed=True)
    found = tree.replace(value, lambda _, t: t.double() * 2)
    assert type(found) is Scaled
    assert (found.value.tolist(), found.signed_t.item()) == ([2.0, 2.0], 2.0)


def test_replace_of_a_library_mapping_keeps_its_class() -> None:
    value = Library(loss=torch.tensor([1.0, 2.0]))
    new = tree.replace(value, lambda _, t: t * 2)
    assert type(new) is Library
    assert new["loss"].tolist() == [2.0, 4.0]
    assert value["loss"].tolist() == [1.0, 2.0]


def test_opaque_names_what_the_walk_cannot_look_into() -> None:
    assert list(tree.opaque({"a": torch.ones(1), "b": [Opaque()], "c": "s"})) == [
        "Opaque"
    ]


def test_shard_takes_rows_of_every_tensor_and_scalars_whole() -> None:
    value = {"x": torch.arange(5), "scale": torch.tensor(3.0), "name": "n"}
    shards = [tree.shard(value, rank, 2) for rank in range(2)]
    assert [s["x"].tolist() for s in shards] == [[0, 1, 2], [3, 4]]
    assert [s["scale"].item() for s in shards] == [3.0, 3.0]
    assert shards[1]["name"] == "n"


def test_permute_reorders_the_rows_of_every_tensor() -> None:
    order = torch.tensor([2, 0, 1])
    new = tree.permute({"x": torch.tensor([10, 11, 12]), "s": torch.tensor(1)}, order)
    assert new["x"].tolist() == [12, 10, 11]
    assert new["s"].item() == 1


@pytest.mark.parametrize(
    ("num_samples", "world_size", "sizes"),
    [(8, 3, [3, 3, 2]), (2, 4, [1, 1, 0, 0]), (48, 16, [3] * 16), (0, 2, [0, 0])],
)
def test_shard_range_is_as_even_as_it_can_be(
    num_samples: int, world_size: int, sizes: list[int]
) -> None:
    found = [tree.shard_range(num_samples, r, world_size)[1] for r in range(world_size)]
    assert found == sizes


@given(st.integers(0, 500), st.integers(1, 40))
def test_shards_cover_the_batch_once_in_order(
    num_samples: int, world_size: int
) -> None:
    rows: list[int] = []
    for rank in range(world_size):
        start, size = tree.shard_range(num_samples, rank, world_size)
        rows += range(start, start + size)
    assert rows == list(range(num_samples))


@given(st.integers(1, 40), st.integers(1, 12))
def test_shard_is_torch_tensor_split(num_samples: int, world_size: int) -> None:
    tensor = torch.arange(num_samples)
    split = tensor.tensor_split(world_size)
    for rank in range(world_size):
        assert torch.equal(tree.shard(tensor, rank, world_size), split[rank])


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.strided])
def test_rows_of_every_layout_are_in_it_too(layout: torch.layout) -> None:
    dense = torch.arange(15.0).reshape(5, 3) % 4
    value = dense.to_sparse(layout=layout) if layout != torch.strided else dense
    for which in (slice(1, 4), slice(1, None, 2), torch.tensor([4, 0, 4])):
        found = tree.rows_of(value, which)
        assert found.layout == layout
        assert torch.equal(found.to_dense(), dense[which])
