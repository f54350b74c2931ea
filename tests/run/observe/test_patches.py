"""DDP's flag is watched, and held, for the length of a run only."""

from __future__ import annotations

from typing import Any

from torch.nn.parallel import DistributedDataParallel

from ddpcheck.run.observe import patches

_NAME = "require_backward_grad_sync"


def _ddp() -> Any:
    """Returns an object of DDP's class, without a process group."""
    return DistributedDataParallel.__new__(DistributedDataParallel)


def test_changes_are_told_and_nothing_stays() -> None:
    events: list[str] = []
    with patches.sync_flag_watched(events.append):
        ddp = _ddp()
        ddp.require_backward_grad_sync = True  # as DDP itself begins
        with ddp.no_sync():
            ddp.require_backward_grad_sync = False  # it is already
        ddp.require_backward_grad_sync = False
    assert (events, ddp.require_backward_grad_sync) == (["[", "]", "["], False)
    assert _NAME not in vars(DistributedDataParallel)


def test_held_flag_is_set_until_the_end() -> None:
    ddp = _ddp()
    ddp.require_backward_grad_sync = True
    with patches.sync_flag_held(is_set=True), ddp.no_sync():
        assert ddp.require_backward_grad_sync
    ddp.require_backward_grad_sync = False
    assert not ddp.require_backward_grad_sync


def test_held_flag_is_unset_until_the_end() -> None:
    ddp = _ddp()
    ddp.require_backward_grad_sync = True
    with patches.sync_flag_held(is_set=False):
        ddp.require_backward_grad_sync = True
        assert not ddp.require_backward_grad_sync
    assert ddp.require_backward_grad_sync
    assert _NAME not in vars(DistributedDataParallel)
