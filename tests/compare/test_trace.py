"""What is written is what is read."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ddpcheck.compare import comparison as compare
from ddpcheck.compare import trace
from ddpcheck.compare.trace import Reader, Writer, as_dense, max_abs

_BLOCK = 1 << 20  # bytes that are compared at once
DTYPES = (
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.uint8,
    torch.bool,
)


def _written(path: Path, named: dict[str, Tensor | None]) -> Reader:
    writer = Writer(path)
    writer.add("gradients", 1, named.items())
    writer.close()
    return Reader(path)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensor_of_each_dtype_comes_back(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.tensor([[1, 0, 3], [0, 5, 6]]).to(dtype)
    read = _written(tmp_path / "t", {"a": torch.ones(1), "w": tensor})
    found = read.get("gradients", 1, "w")
    assert found is not None
    assert found.dtype == dtype
    assert torch.equal(found, tensor)


def test_groups_with_the_same_bytes_are_found_before_the_trace_is_closed(
    tmp_path: Path,
) -> None:
    writer = Writer(tmp_path / "t")
    moved = {"w": torch.ones(3), "v": torch.tensor([2.0, 5.0]), "none": None}
    writer.add("initial", 0, [("w", torch.ones(3)), ("v", torch.tensor([2.0, 4.0]))])
    writer.add("weights", 0, moved.items())
    first, second = ("initial", 0), ("weights", 0)
    assert writer.are_same(first, second, ["w", "none", "of neither"])
    assert not writer.are_same(first, second, ["w", "v"])
    writer.close()
    assert Reader(tmp_path / "t").get("weights", 0, "w") is not None


@pytest.mark.parametrize("place", [None, 0, _BLOCK // 8, -1])
def test_bytes_of_large_tensors_are_compared_to_their_end(
    tmp_path: Path, place: int | None
) -> None:
    before = torch.arange(2 * _BLOCK // 8 + 3, dtype=torch.float64)
    after = before.clone()
    if place is not None:
        after[place] += 1
    writer = Writer(tmp_path / "t")
    for step, tensor in enumerate((before, after)):
        writer.add("weights", step, [("w", tensor)])
    same = writer.are_same(("weights", 0), ("weights", 1), ["w"])
    assert same == (place is None)
    writer.discard()


def test_odd_tensors_come_back_dense_and_real(tmp_path: Path) -> None:
    sparse = torch.eye(3).to_sparse()
    turned = torch.arange(6.0).reshape(2, 3).t()
    named: dict[str, Tensor | None] = {
        "sparse": sparse,
        "transposed": turned,
        "complex": torch.tensor([1 + 2j]).conj(),
        "scalar": torch.tensor(7.0),
        "empty": torch.empty(0, 3),
        "none": None,
    }
    read = _written(tmp_path / "t", named)
    assert list(read.names("gradients", 1)) == list(named)
    values = {name: read.get("gradients", 1, name) for name in named}
    assert values.pop("none") is None
    found = {name: t.tolist() for name, t in values.items() if t is not None}
    assert found == {
        "sparse": torch.eye(3).tolist(),
        "transposed": turned.tolist(),
        "complex": [[1.0, -2.0]],
        "scalar": 7.0,
        "empty": [],
    }


def test_scale_is_the_largest_value_of_the_group(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "t")
    writer.add("weights", 0, [("a", torch.tensor([1.0, -9.0]))])
    writer.add("weights", 0, [("b", torch.tensor([3.0])), ("c", None)])
    writer.close()
    read = Reader(tmp_path / "t")
    assert read.scale("weights", 0) == 9.0
    assert read.scale("weights", 1) == 0.0
    assert read.names("weights", 1) == {}


def test_scale_is_of_what_is_finite_and_trained(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "t")
    mask, weight = torch.tensor([-1e9, 0.0]), torch.tensor([-3.0, math.inf])
    writer.add("weights", 0, [("mask", mask), ("weight", weight)], {"mask"})
    writer.add("gradients", 0, [("weight", torch.tensor([math.nan, 2.0]))])
    writer.close()
    index = Reader(tmp_path / "t").index
    assert index.scale == {("weights", 0): 3.0, ("gradients", 0): 2.0}
    assert index.has_infinity == {("weights", 0)}
    assert index.has_nan == {("gradients", 0)}


def test_unknown_name_is_a_key_error(tmp_path: Path) -> None:
    read = _written(tmp_path / "t", {"w": torch.ones(1)})
    with pytest.raises(KeyError):
        read.get("gradients", 1, "v")


def test_open_trace_cannot_be_read(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "t")
    with pytest.raises(FileNotFoundError):
        Reader(tmp_path / "t")
    writer.discard()
    assert list(tmp_path.iterdir()) == []


def test_trace_without_tensors_can_be_read(tmp_path: Path) -> None:
    read = _written(tmp_path / "t", {"w": None})
    assert read.get("gradients", 1, "w") is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [([], 0.0), ([1.0, -4.0], 4.0), ([math.inf, 1.0], math.inf)],
)
def test_max_abs(values: list[float], expected: float) -> None:
    assert max_abs(torch.tensor(values)) == expected


def test_max_abs_of_nan_is_nan() -> None:
    assert math.isnan(max_abs(torch.tensor([1.0, math.nan])))


def test_max_abs_of_integers_and_booleans() -> None:
    assert max_abs(torch.tensor([3, -7])) == 7.0
    assert max_abs(torch.tensor([False, True])) == 1.0


def test_as_dense_leaves_the_graph() -> None:
    assert not as_dense(torch.ones(2, requires_grad=True)).requires_grad


@given(
    st.lists(
        st.lists(st.floats(allow_nan=True, width=64), max_size=5),
        min_size=1,
        max_size=6,
    )
)
def test_trace_matches_itself_at_zero_tolerance(
    tmp_path_factory: pytest.TempPathFactory, values: list[list[float]]
) -> None:
    named: dict[str, Tensor | None] = {
        f"w{i}": torch.tensor(v, dtype=torch.float64) for i, v in enumerate(values)
    }
    named = {
        n: t.nan_to_num(posinf=1, neginf=1, nan=math.nan)
        for n, t in named.items()
        if t is not None
    }
    read = _written(tmp_path_factory.mktemp("trace") / "t", named)
    again = {name: read.get("gradients", 1, name) for name in named}
    found = compare.compare_group(again, named, rtol=0.0, scale=0.0, step=1)
    assert (found.compared, found.mismatched) == (len(named), 0)


def _mapped(path: Path) -> int:
    """Returns the bytes of a file that are in this process's memory."""
    lines = iter(Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines())
    size = 0
    for line in lines:
        if line.endswith(str(path)):
            size += next(int(x.split()[1]) for x in lines if x.startswith("Rss:"))
    return 1024 * size


def test_what_was_read_leaves_memory_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {f"p{i}": torch.full((1 << 18,), float(i)) for i in range(5)}  # 1 MiB each
    reader = _written(tmp_path / "trace", dict(named))
    monkeypatch.setattr(trace, "PART", 2 << 20)
    sizes = []
    for name, tensor in named.items():
        assert not reader.differs("gradients", 1, name, tensor)
        sizes.append(_mapped(tmp_path / "trace.bin") >> 20)
    assert sizes == [1, 2, 0, 1, 2]
    kept = reader.get("gradients", 1, "p3")
    assert kept is not None
    reader.release()
    assert _mapped(tmp_path / "trace.bin") == 0
    assert kept[-1] == 3  # it comes back
