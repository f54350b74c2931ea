"""What a step shows of ranks that share their weights after an update."""

from __future__ import annotations

import torch

from ddpcheck.compare import summing
from ddpcheck.run.record.sharing import Sharing


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
    parted = ((summing.digest(after), summing.digest(left)),)
    assert sharing.finish() == (parted, False)
    assert sharing.finish() == ((), False)


def test_all_updates_have_to_reduce() -> None:
    sharing = Sharing()
    for reduces in (True, False):
        sharing.is_wrong = True
        sharing.updated({"w": torch.ones(2)}, reduces=reduces)
    assert sharing.finish()[1] is False
