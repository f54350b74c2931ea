"""`global_batch` outside of a check, and in the process that takes its batches."""

from __future__ import annotations

import os

import pytest

import ddpcheck
from ddpcheck.ranks import sharing


def test_batch_is_returned_unchanged_outside_of_a_check() -> None:
    batch = ([1, 2], {"x": 3})
    assert ddpcheck.global_batch(batch) is batch


def test_batch_is_taken_in_its_own_process_and_in_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with sharing.taken_by(lambda batch: [*batch, "taken"]):
        assert ddpcheck.global_batch(["a"]) == ["a", "taken"]
        with sharing.taken_by(lambda batch: [*batch, "by another"]):
            assert ddpcheck.global_batch(["a"]) == ["a", "by another"]
        assert ddpcheck.global_batch(["a"]) == ["a", "taken"]
        monkeypatch.setattr(os, "getpid", lambda: -1)  # as in a worker
        assert ddpcheck.global_batch(["a"]) == ["a"]
    assert ddpcheck.global_batch(["a"]) == ["a"]
