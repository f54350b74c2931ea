"""Where a script calls `fully_shard`, and what takes its place in a diagnosis."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import fsdp
from torch.distributed.tensor import Placement, Replicate, Shard

from ddpcheck.run.script import sharded

pytestmark = pytest.mark.usefixtures("seeded")  # layers draw their weights


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(x)
        return found


def test_root_of_a_part_is_the_largest_module_that_contains_it() -> None:
    model, other = Net(), Net()
    assert sharded.root_of(model.layers[0]) is model
    assert sharded.root_of(other) is other


def test_whole_module_keeps_its_parameters_and_has_the_methods() -> None:
    model = Net()
    weight = model.layers[0].weight
    assert sharded.keep_whole(model) is model
    assert isinstance(model, fsdp.FSDPModule)
    assert type(model).__name__ == "Net"
    kept: Any = model
    kept.reshard()
    kept.set_requires_gradient_sync(requires_gradient_sync=False)
    assert kept.unshard() is None
    kept.unshard(async_op=True).wait()
    assert kept.layers[0].weight is weight
    assert kept(torch.ones(2, 3)).shape == (2, 1)
    assert kept.double().layers[0].weight.dtype == torch.float64


def test_slice_of_a_whole_container_is_of_its_own_class() -> None:
    model = Net()
    sharded.keep_whole(model.layers)
    assert type(model.layers[:1]) is nn.Sequential


def test_gradient_divide_factor_of_a_whole_module_is_refused() -> None:
    model = sharded.keep_whole(Net())
    with pytest.raises(NotImplementedError):
        model.set_gradient_divide_factor(1.0)


def test_fully_shard_that_a_module_has_imported_is_watched_too() -> None:
    module: Any = types.ModuleType("has_imported_it")
    original = module.fully_shard = fsdp.fully_shard
    sys.modules[module.__name__] = module
    try:
        with sharded.watched(lambda _: sharded.keep_whole):
            assert isinstance(module.fully_shard(Net()), sharded.Whole)
            assert isinstance(fsdp.fully_shard(Net()), sharded.Whole)
    finally:
        del sys.modules[module.__name__]
    assert fsdp.fully_shard is original
    assert module.fully_shard is original


def test_model_on_the_meta_device_has_no_values() -> None:
    with torch.device("meta"):
        model = Net()
    assert not sharded.has_values(model)
    assert sharded.has_values(Net())


class DTensor:
    """A parameter that is cut over ranks; `placements`: of each dimension of a mesh."""

    def __init__(self, *placements: Placement) -> None:
        self.placements = placements


TENSORS = "tensor parallelism"


@pytest.mark.parametrize(
    ("parameter", "shards", "cut"),
    [
        (nn.Parameter(torch.ones(2)), False, ""),
        (DTensor(Replicate()), False, ""),
        (DTensor(Shard(1)), False, TENSORS),
        (DTensor(Shard(0)), True, ""),  # fully_shard
        (DTensor(Replicate(), Shard(0)), True, ""),  # with replicas
        (DTensor(Shard(0), Shard(1)), True, TENSORS),  # of a model that is cut already
    ],
)
def test_parameter_is_cut_otherwise_than_by_fully_shard(
    parameter: Any,
    shards: bool,  # noqa: FBT001
    cut: str,
) -> None:
    every = [nn.Parameter(torch.ones(1)), parameter]
    assert sharded.cut_otherwise([], every, shards=shards) == cut


def test_fully_sharded_data_parallel_is_noted() -> None:
    found: list[nn.Module] = []
    with sharded.old_noted(found), pytest.raises((RuntimeError, ValueError)):
        fsdp.FullyShardedDataParallel(Net())  # no group of processes
    assert sharded.cut_otherwise(found, [], shards=False) == "FullyShardedDataParallel"
    assert sharded.cut_otherwise([], [], shards=False) == ""
