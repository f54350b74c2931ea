"""Updates of a rank in another order than in the single-process run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from ddpcheck.compare import digests
from ddpcheck.compare.trace import Reader, Writer, opened
from ddpcheck.run.facts import MoreTraceFacts
from ddpcheck.run.record.updates import Named, Sharing, Updates

ONE = torch.ones(2)
# Hooks that update one parameter after the other, each as its gradient is there.
FUSED: list[Named] = [{"bias": ONE, "weight": None}, {"bias": None, "weight": ONE}]


def _reader(folder: Path, steps: list[list[Named]]) -> Reader:
    writer = Writer(folder / "trace")
    for step, updates in enumerate(steps):
        for number, named in enumerate(updates):
            suffix = f"@{number}" if number else ""
            group = {f"{name}{suffix}": t for name, t in named.items()}
            writer.add(f"gradients{suffix}", step, group.items())
        writer.add("weights", step, [("bias", ONE), ("weight", ONE)])
    writer.close()
    return opened(writer.path)


def _placed(updates: Updates, step: int, *given: str) -> list[tuple[str, list[str]]]:
    """Returns where updates of these parameters go, one after the other."""
    found = []
    for number, name in enumerate(given):
        suffix = f"@{number}" if number else ""
        named: Named = {f"{name}{suffix}": ONE}
        quantity, as_placed = updates.places(f"gradients{suffix}", step, named)[0]
        updates.take(quantity)
        found.append((quantity, list(as_placed)))
    return found


def test_updates_go_to_those_of_the_same_parameters(tmp_path: Path) -> None:
    updates = Updates(_reader(tmp_path, [FUSED, FUSED]))
    first, second = ("gradients", ["bias"]), ("gradients@1", ["weight@1"])
    for step in range(2):
        assert _placed(updates, step, "bias", "weight") == [first, second]
    assert _placed(Updates(updates.reader), 0, "weight", "bias") == [second, first]


def test_updates_of_the_same_parameters_keep_their_order(tmp_path: Path) -> None:
    alike: Named = {"bias": ONE}
    updates = Updates(_reader(tmp_path, [[alike, alike, alike]]))
    assert _placed(updates, 0, "bias", "bias") == [
        ("gradients", ["bias"]),
        ("gradients@1", ["bias@1"]),
    ]


@pytest.mark.parametrize("name", ["weight", "head"])
def test_update_that_one_process_has_not_keeps_its_number(
    name: str, tmp_path: Path
) -> None:
    updates = Updates(_reader(tmp_path, [[{"bias": ONE}, {"bias": ONE}]]))
    assert _placed(updates, 0, name) == [("gradients", [name])]


def test_other_quantities_stay(tmp_path: Path) -> None:
    updates = Updates(_reader(tmp_path, [FUSED]))
    named: dict[str, Tensor | None] = {"weight": ONE}
    for quantity in ("weights", "gradients@other0"):
        assert updates.places(quantity, 0, named) == [(quantity, named)]


def test_update_may_be_any_that_the_rank_has_not_made(tmp_path: Path) -> None:
    alike: Named = {"bias": ONE}
    updates = Updates(_reader(tmp_path, [[alike] * 12]))
    updates.take("gradients")
    updates.step = 0
    places = updates.places("gradients@1", 0, {"bias@1": ONE})
    assert [(quantity, list(named)) for quantity, named in places] == [
        (f"gradients@{number}", [f"bias@{number}"]) for number in range(1, 9)
    ]
    updates.take("gradients@3")
    assert updates.left_out(0)[:3] == ["gradients@1", "gradients@2", "gradients@4"]
    assert updates.left_out(1) == []


@pytest.mark.parametrize(
    ("in_backward", "expected"), [(True, [3.0, 3.0]), (False, [2.0**-60, 3.0])]
)
def test_updates_within_a_backward_are_judged_by_the_size_of_all(
    tmp_path: Path,
    in_backward: bool,  # noqa: FBT001
    expected: list[float],
) -> None:
    # That of a bias before a batch norm is rounding alone.
    rounding: Named = {"bias": torch.full((2,), -(2.0**-60)), "weight": None}
    single: Named = {"bias": None, "weight": torch.tensor([0.5, -3.0])}
    updates = Updates(_reader(tmp_path, [[rounding, single]]))
    facts: MoreTraceFacts = {"updates_in_backward": in_backward}
    updates.reader.index.facts = facts
    assert [updates.scale(q, 0) for q in ("gradients", "gradients@1")] == expected
    assert updates.scale("weights", 0) == 1.0


def test_update_by_right_gradients_tells_nothing() -> None:
    sharing = Sharing()
    sharing.updated({"w": torch.ones(2)}, reduces=True)
    sharing.end({"w": torch.ones(2)})
    assert sharing.finish() == ((), False)


def test_weights_are_noted_after_the_update_and_at_the_end() -> None:
    sharing = Sharing(is_wrong=True)
    after, left = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([1.0, 3.0])}
    sharing.updated(after, reduces=False)
    sharing.updated({"w": torch.zeros(2)}, reduces=True)  # of one that handed it on
    sharing.end(left | {"other": torch.ones(1)})
    parted = ((digests.digest(after), digests.digest(left)),)
    assert sharing.finish() == (parted, False)
    assert sharing.finish() == ((), False)


def test_all_updates_have_to_reduce() -> None:
    sharing = Sharing()
    for reduces in (True, False):
        sharing.is_wrong = True
        sharing.updated({"w": torch.ones(2)}, reduces=reduces)
    assert sharing.finish()[1] is False
