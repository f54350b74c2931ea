"""What a check does before it knows the target."""

from __future__ import annotations

from typing import cast

from ddpcheck.checking import _open_ahead
from ddpcheck.options import Options
from ddpcheck.ranks.pool import SOLO, Pool


class _Opened(list[int]):
    """Notes how many ranks are asked for, in the place of a pool."""

    def open(self, size: int) -> None:
        self.append(size)


def test_many_ranks_are_not_forked_before_the_batch_is_known() -> None:
    opened = _Opened()
    options = Options(world_sizes=(2, 16, 17, 1000), modes=("ddp",))
    _open_ahead(cast("Pool", opened), options, None)
    assert opened == [SOLO, 2, 16]
