"""DataParallel on the CPU means what torch's means on GPUs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddpcheck.run.intervention import Switch
from ddpcheck.run.modes.data_parallel import DataParallelOnOneDevice

pytestmark = pytest.mark.usefixtures("seeded")


class Watched(nn.Module):
    """Returns the inputs of each replica."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(()))
        self.seen: list[dict[str, Any]] = []

    def forward(self, x: Tensor, extra: Any = None, *, key: Any = None) -> Tensor:
        calls: Any = self.calls
        calls.add_(len(x))
        self.seen.append(
            {
                "rows": len(x),
                "extra": extra,
                "key": key,
                "parameters": len(list(self.parameters())),
                "is leaf": self.linear.weight.is_leaf,
                "thread": threading.current_thread(),
            }
        )
        out: Tensor = self.linear(x)
        return out


def _parallel(module: nn.Module, world_size: int) -> Any:
    return DataParallelOnOneDevice(module, world_size)


@pytest.mark.parametrize(
    ("num_samples", "world_size", "chunks"),
    [
        (8, 2, [4, 4]),
        (6, 4, [2, 2, 2]),
        (5, 4, [2, 2, 1]),
        (10, 8, [2, 2, 2, 2, 2]),
        (2, 4, [1, 1]),
        (1, 2, [1]),
        (7, 3, [3, 3, 1]),
    ],
)
def test_batch_is_cut_by_torch_chunk(
    num_samples: int, world_size: int, chunks: list[int]
) -> None:
    model = Watched()
    inputs = torch.randn(num_samples, 3)
    out = _parallel(model, world_size)(inputs)
    assert [seen["rows"] for seen in model.seen] == chunks
    assert chunks == [
        len(chunk) for chunk in torch.arange(num_samples).chunk(world_size)
    ]
    assert torch.allclose(out, model.linear(inputs))


def test_gradients_are_those_of_the_whole_batch() -> None:
    model, inputs = Watched().double(), torch.randn(7, 3, dtype=torch.float64)
    _parallel(model, 3)(inputs).pow(3).mean().backward()
    found = model.linear.weight.grad
    model.zero_grad()
    model(inputs).pow(3).mean().backward()
    expected = model.linear.weight.grad
    assert found is not None
    assert expected is not None
    assert (found - expected).abs().max() < 1e-14


def test_replicas_have_no_parameters_but_non_leaf_tensors() -> None:
    model = Watched()
    _parallel(model, 2)(torch.randn(4, 3))
    assert [(s["parameters"], s["is leaf"]) for s in model.seen] == [(0, False)] * 2
    assert len(list(model.parameters())) == 2


def test_first_replica_shares_buffers_and_writes_of_the_others_are_lost() -> None:
    model = Watched()
    _parallel(model, 3)(torch.randn(7, 3))
    calls: Any = model.calls
    assert calls.item() == 3  # the rows of chunk 0


def test_one_device_calls_the_module_itself() -> None:
    model = Watched()
    _parallel(model, 1)(torch.randn(4, 3))
    assert model.seen[0]["parameters"] == 2
    assert model.seen[0]["thread"] is threading.main_thread()


def test_replicas_run_in_threads_of_their_own() -> None:
    model = Watched()
    _parallel(model, 2)(torch.randn(4, 3))
    threads = {seen["thread"] for seen in model.seen}
    assert len(threads) == 2
    assert threading.main_thread() not in threads


def test_tensors_in_containers_are_cut_and_other_objects_copied_whole() -> None:
    model = Watched()
    extra = {"mask": torch.arange(4), "name": "n", "pair": (torch.arange(4), 5)}
    _parallel(model, 2)(torch.randn(4, 3), extra, key=[7, 8])
    assert [seen["extra"]["mask"].tolist() for seen in model.seen] == [[0, 1], [2, 3]]
    assert [seen["extra"]["pair"][0].tolist() for seen in model.seen] == [
        [0, 1],
        [2, 3],
    ]
    assert [seen["extra"]["pair"][1] for seen in model.seen] == [5, 5]
    assert [seen["extra"]["name"] for seen in model.seen] == ["n", "n"]
    assert [seen["key"] for seen in model.seen] == [[7, 8], [7, 8]]


class Losses(nn.Module):
    """Returns a scalar per replica, and nested outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"loss": (self.weight * x).mean(), "pair": (x, [x + 1])}


@pytest.mark.filterwarnings("ignore:Was asked to gather along dimension 0")
def test_scalars_are_gathered_to_a_vector() -> None:
    model = Losses()
    out = _parallel(model, 3)(torch.tensor([1.0, 3.0, 5.0, 7.0, 9.0]))
    assert out["loss"].tolist() == [4.0, 12.0, 18.0]
    assert out["pair"][1][0].tolist() == [2.0, 4.0, 6.0, 8.0, 10.0]
    out["loss"].mean().backward()
    assert model.weight.grad is not None
    assert model.weight.grad.item() == pytest.approx((2 + 6 + 9) / 3)


class Raises(nn.Module):
    """Raises on the second chunk."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        if x[0].item() > 1:
            message = f"cannot take {x[0].item():g}"
            raise LookupError(message)
        out: Tensor = self.linear(x)
        return out


def test_exception_of_a_replica_is_raised_in_the_caller() -> None:
    with pytest.raises(LookupError, match="cannot take 2"):
        _parallel(Raises(), 2)(torch.tensor([[1.0], [2.0]]))


@pytest.mark.parametrize("is_enabled", [True, False])
def test_grad_mode_of_the_caller_reaches_the_replicas(
    is_enabled: bool,  # noqa: FBT001
) -> None:
    with torch.set_grad_enabled(is_enabled):
        out = _parallel(Watched(), 2)(torch.randn(4, 3))
    assert out.requires_grad is is_enabled


@pytest.mark.parametrize(
    ("world_size", "rows"), [(1, [(0, 5)]), (3, [(0, 2), (2, 2), (4, 1)])]
)
def test_around_replica_is_entered_with_its_rows(
    world_size: int, rows: list[tuple[int, int]]
) -> None:
    entered: list[tuple[int, int]] = []

    @contextlib.contextmanager
    def around(start: int, size: int) -> Iterator[None]:
        entered.append((start, size))
        yield

    DataParallelOnOneDevice(Watched(), world_size, around)(torch.randn(5, 3))
    assert entered == rows


def test_torchs_primitives_are_back_afterwards() -> None:
    from torch.nn.parallel import _functions, scatter_gather  # noqa: PLC0415

    before = _functions.Broadcast, scatter_gather.Scatter, scatter_gather.Gather
    _parallel(Watched(), 2)(torch.randn(4, 3))
    after = _functions.Broadcast, scatter_gather.Scatter, scatter_gather.Gather
    assert after == before


def test_batch_norm_of_replicas_is_local_and_only_the_first_updates_it() -> None:
    model = nn.BatchNorm1d(2, momentum=1.0)
    inputs = torch.tensor([[0.0, 1.0], [2.0, 3.0], [10.0, 20.0], [30.0, 60.0]])
    out = _parallel(model, 2)(inputs)
    assert out[2:].mean(0).abs().max() < 1e-6
    running: Any = model.running_mean
    assert running.tolist() == [1.0, 2.0]


class _Layers(nn.Module):
    """Takes and returns a state with samples in dimension 1, and a plain table."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.table = nn.Linear(3, 2), nn.Parameter(torch.randn(2, 4))

    def forward(self, x: Tensor, state: Tensor) -> Any:
        y = self.linear(x)
        single = y.mean().reshape(1)
        return y, state + y.sum(1)[None, :, None], self.table * 1, single


def test_by_samples_splits_and_joins_where_the_samples_are() -> None:
    model = _Layers()
    x, state = torch.randn(5, 3), torch.randn(2, 5, 4)
    expected = model(x, state)
    parallel = DataParallelOnOneDevice(model, 2, fixes=(Switch.SPLIT_SAMPLES_ALONE,))
    output, states, table, means = parallel(x, state)  # of 3 samples, and of 2
    for found, wanted in zip((output, states, table), expected[:3], strict=True):
        torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(
        means, torch.stack([expected[0][:3].mean(), expected[0][3:].mean()])
    )


def test_mean_of_scalars_counts_replicas_where_no_argument_is_a_tensor() -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))

        def forward(self, data: dict[str, Any]) -> Tensor:
            return self.weight.sum() * float(data["scale"])

    model = Constant()
    parallel = DataParallelOnOneDevice(model, 2, fixes=(Switch.MEAN_OF_SCALARS,))
    torch.testing.assert_close(parallel({"scale": 2.0}), 2 * model.weight.sum())
