"""Which runs are made side by side: as many as the cores are good for."""

from __future__ import annotations

from typing import Any

import pytest

from ddpcheck.run.facts import LARGE, Sizes
from ddpcheck.run.session import session
from ddpcheck.run.session.session import Session
from ddpcheck.run.spec import ReferenceResult, RunOutcome, RunSpec
from ddpcheck.target.target import TargetRef


class Crews:
    """A pool that ends its last job first, and records which jobs ran with it."""

    def __init__(self) -> None:
        self.at_work: list[str] = []
        self.seen: list[list[str]] = []
        self.timeout_s = 60.0
        self.limits: list[tuple[float, bool]] = []

    def submit(self, job: Any, *_: Any, **more: Any) -> Any:
        self.limits.append((more["timeout_s"], more["is_bounded"]))
        spec = job.arguments["spec"]
        task = type("Task", (), {"outcomes": [], "seconds": 0.0})()
        task.name = f"{spec.mode}{spec.world_size}"
        self.at_work.append(task.name)
        return task

    def as_done(self, tasks: list[Any]) -> Any:
        self.seen.append(list(self.at_work))
        self.at_work.remove(tasks[-1].name)
        yield tasks[-1]


@pytest.mark.parametrize(
    ("seconds", "parameters", "cores", "expected"),
    [
        # Quick ones wait for each other more than they compute.
        (0.1, 8, 2, ["ddp2 dp2 ddp4", "ddp2 dp2", "ddp2 dp4", "ddp2"]),
        (0.1, LARGE, 2, ["ddp2 dp2 ddp4", "ddp2 dp2", "ddp2 dp4", "ddp2"]),
        # The cheapest that can diverge first.
        (3.0, 8, 2, ["ddp2", "dp2", "ddp4", "dp4"]),
        (3.0, 8, 5, ["ddp2 dp2", "ddp2 dp4", "ddp2", "ddp4"]),
        # The single process computes with all cores.
        (3.0, LARGE, 5, ["ddp2", "dp2", "ddp4", "dp4"]),
        (3.0, LARGE, 6, ["ddp2 ddp4", "ddp2", "dp2", "dp4"]),
    ],
)
def test_slow_runs_do_not_share_a_core(
    seconds: float,
    parameters: int,
    cores: int,
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = Sizes(parameters=parameters, gradients=0, optimizer=0, recorded=0)
    made = ReferenceResult(seconds=seconds, facts={"sizes": sizes, "idle": []})
    monkeypatch.setattr(Session, "reference", lambda *_: made)
    monkeypatch.setattr(session, "cores", lambda: cores)
    crews = Crews()
    specs = [RunSpec(mode=m, world_size=w) for m in ("dp", "ddp") for w in (2, 4)]
    runs = Session(crews, TargetRef(path="mine.py")).run(specs)  # type: ignore[arg-type]
    assert [type(run) for run in runs] == [RunOutcome] * 4
    assert [" ".join(names) for names in crews.seen] == expected


@pytest.mark.parametrize(
    ("is_bounded", "limits"), [(True, [60.0, 60.0]), (False, [400.0, 2000.0])]
)
def test_limit_that_was_chosen_is_not_stretched(
    *, is_bounded: bool, limits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ReferenceResult(seconds=100.0, facts={"idle": []})
    monkeypatch.setattr(Session, "reference", lambda *_: made)
    crews = Crews()
    slow = Session(crews, TargetRef(path="mine.py"))  # type: ignore[arg-type]
    slow.is_bounded = is_bounded
    slow.run([RunSpec(mode=m, world_size=w) for m, w in (("dp", 2), ("sim", 4))])
    assert crews.limits == [(limit, is_bounded) for limit in limits]
