"""The case of `peers.py` under PyTorch's own test classes; they need expecttest.

    python benchmarks/peer_tests.py continuous|per-test WORLD_SIZE TESTS

Prints the seconds of each test but the first, which brings the processes up.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
import unittest

import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import (
    MultiProcContinuousTest,
    MultiProcessTestCase,
)
from warm import Step, train_and_compare, train_plain

WORLD_SIZE, TESTS = "PEER_TESTS_WORLD_SIZE", "PEER_TESTS_NUMBER"


@functools.cache
def reference() -> list[Step]:
    """Returns the steps of one process: made once, as a test suite would."""
    return train_plain()


def train_as_rank() -> None:
    """Trains in a process that has a group, and compares with one process."""
    torch.set_num_threads(1)
    train_and_compare(dist.get_rank(), dist.get_world_size(), reference())


class Continuous(MultiProcContinuousTest):
    """Processes that stay."""

    world_size = int(os.environ.get(WORLD_SIZE, "2"))

    @classmethod
    def backend_str(cls) -> str:
        """Returns the backend of the group."""
        return "gloo"


class PerTest(MultiProcessTestCase):
    """New processes for each test."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return int(os.environ[WORLD_SIZE])

    def setUp(self) -> None:
        """Starts the processes of one test."""
        super().setUp()
        self._spawn_processes()

    def train(self) -> None:
        """Makes the group and trains."""
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group(
            "gloo", store=store, rank=self.rank, world_size=self.world_size
        )
        train_as_rank()


# Processes import this module anew: the tests must be there.
for number in range(int(os.environ.get(TESTS, "0")) + 1):
    setattr(Continuous, f"test_{number}", lambda _: train_as_rank())
    setattr(PerTest, f"test_{number}", PerTest.train)


class Timed(unittest.TestResult):
    """Notes how long each test takes, with its setUp and tearDown."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.started = 0.0

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        """Starts the clock."""
        super().startTest(test)
        self.started = time.perf_counter()

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        """Stops the clock."""
        self.seconds.append(time.perf_counter() - self.started)
        super().stopTest(test)


def main() -> None:
    """Runs the tests of one class."""
    kind, os.environ[WORLD_SIZE], os.environ[TESTS] = sys.argv[1:]
    # The names that spawned processes find: not those of __main__.
    import peer_tests  # noqa: PLC0415

    made = {"continuous": peer_tests.Continuous, "per-test": peer_tests.PerTest}[kind]
    result = Timed()
    names = [f"test_{number}" for number in range(int(os.environ[TESTS]) + 1)]
    unittest.TestSuite(made(name) for name in names).run(result)
    if not result.wasSuccessful():
        raise SystemExit((result.errors + result.failures)[0][1])
    print(json.dumps(result.seconds[1:]))


if __name__ == "__main__":
    main()
