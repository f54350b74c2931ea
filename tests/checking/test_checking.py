"""What a check does before it knows the target."""

from __future__ import annotations

from typing import cast

import pytest

from ddpcheck.checking.opening import open_ahead, wait_for_imports
from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks.pool import SOLO, Pool, PreloadError
from ddpcheck.run.session.session import CannotCheckError
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef


class _Opened(list[int]):
    """Notes how many ranks are asked for, in the place of a pool."""

    def open(self, size: int, _: int = 0) -> None:
        self.append(size)


def test_many_ranks_are_not_forked_before_the_batch_is_known() -> None:
    opened = _Opened()
    options = Options(world_sizes=(2, 16, 17, 1000), modes=("ddp",))
    open_ahead(cast("Pool", opened), options, None)
    assert opened == [SOLO, 2, 16]


class _Failing:
    """Fails to import, in the place of a pool."""

    def __init__(self, error: PreloadError) -> None:
        self.error = error

    def wait_for_imports(self) -> None:
        raise self.error


def _fails(error: PreloadError) -> None:
    pool = cast("Pool", _Failing(error))
    wait_for_imports(pool, TargetRef(path="/home/me/mymodel.py"))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            PreloadError("hung", "", of_user=True, limit_s=5.0),
            "importing mymodel.py did not end within 5 s; if it needs longer: "
            "--timeout-s",
        ),
        (
            PreloadError("hung", "", of_user=False, limit_s=180.0),
            "importing torch and ddpcheck did not end within 180 s",
        ),
        (
            PreloadError("raised", "KeyError: 'a'", of_user=True),
            "importing mymodel.py failed unexpectedly",
        ),
    ],
    ids=["target-hangs", "torch-hangs", "target-raises"],
)
def test_import_that_fails_is_reported_by_the_origin_of_its_code(
    error: PreloadError, message: str
) -> None:
    with pytest.raises(CannotCheckError) as caught:
        _fails(error)
    assert (caught.value.message, caught.value.detail) == (message, error.detail)


def test_torch_that_cannot_be_imported_is_the_environments() -> None:
    with pytest.raises(UsageError) as caught:
        _fails(PreloadError("raised", "ImportError: no torch", of_user=False))
    assert caught.value.problem.slug == "environment-import"
    assert caught.value.problem.found == "ImportError: no torch"
