"""What W ranks, and one process, record of a script: the first runs of its check."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from dataclasses import dataclass

from ddpcheck.checking import script_draws
from ddpcheck.checking.script_endings import steps
from ddpcheck.ranks.messages import Job, Outcome
from ddpcheck.ranks.pool import SOLO, Pool
from ddpcheck.run.script.events import CALLS, Built, Drawn, Updated
from ddpcheck.target.options import Options
from ddpcheck.target.script import Known, Script


@dataclass(frozen=True, slots=True, kw_only=True)
class Recordings:
    """What the ranks and the single process recorded of a script.

    `asked`: the steps to check. `seconds`: that the ranks took, and `single_s` the
    single process.
    """

    folder: str
    asked: int
    ranks: list[Outcome]
    single: Outcome
    seconds: float
    single_s: float

    def known(self) -> Known:
        """Returns what later runs have to know."""
        built = [e for o in self.ranks for e in o.progress if isinstance(e, Built)]
        loaders = {event.loader for event in script_draws.drawn(self.ranks[0])}
        draws = bool(loaders)
        every = list(self.ranks)
        every += [] if self.single.kind == "done" else [self.single]
        most = min(self.asked, *map(steps, every))
        if draws:
            most = script_draws.usable_steps(self.ranks, most)
        numbers = script_draws.numbers(self.ranks[0])
        return Known(
            folder=self.folder,
            world_size=len(self.ranks),
            steps=most,
            model=built[0].model if built else None,
            passes=tuple(sorted(script_draws.passes(self.ranks).items())),
            split=self._split(),
            ahead=tuple(script_draws.ahead(self.ranks[0])),
            looks=tuple(script_draws.looks(self.ranks[0])),
            draws=draws,
            has_all=self._has_all(),
            has_numbers=any(numbers),
            first_numbers=max(0, numbers[0] - numbers[1]) if numbers[1:] else 0,
            has_others=len(loaders) > 1,
            shards=any(one.shards for one in built),
            places=built[0].places if built else (),
        )

    def wants_devices(self) -> bool:
        """Returns whether the ranks train, and the single process ends at once."""
        is_idle = self.single.kind == "done" and not steps(self.single)
        return is_idle and min(map(steps, self.ranks)) > 0

    def parting(self) -> int | None:
        """Returns the first step (from 0) whose update makes the ranks differ.

        None where they never do, or do from the first update on.
        """
        updates = [
            [e for e in o.progress if isinstance(e, Updated)] for o in self.ranks
        ]
        agree = [
            len({update.weights for update in each}) == 1
            for each in zip(*updates, strict=False)
        ]
        return agree.index(False) if agree[:1] == [True] and False in agree else None

    def _has_all(self) -> bool:
        """Returns whether the single process gives its model the rows of all ranks."""
        single, each = _called(self.single), [_called(one) for one in self.ranks]
        most = min(self.asked, *map(steps, self.ranks))
        return all(
            single[step]
            and single[step] == sum((rank[step] for rank in each), Counter())
            for step in range(most)
        )

    def _split(self) -> int:
        ranks, single = _batches(self.ranks[0]), _batches(self.single)
        step = 1 if 1 in ranks and 1 in single else 0
        world_size = len(self.ranks)
        return world_size if single[step] == world_size * ranks[step] > 0 else 1


def _batches(outcome: Outcome) -> Counter[int]:
    """Returns how many batches each step has: draws, else calls of the model."""
    drawn = Counter(event.step for event in script_draws.drawn(outcome))
    if drawn:
        return drawn
    updates = [e for e in outcome.progress if isinstance(e, Updated)]
    return Counter({e.step: len(e.rows) for e in updates})


def _called(outcome: Outcome) -> defaultdict[int, Counter[str]]:
    """Returns the rows that the model is given in each step, where no loader draws."""
    found: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for event in outcome.progress:
        if isinstance(event, Drawn) and event.loader == CALLS:
            found[event.step].update(event.rows)
    return found


def with_devices(
    pool: Pool, script: Script, world_size: int, options: Options
) -> tuple[Script, Recordings]:
    """Returns the script, and what is recorded of it, with as many GPUs as it wants.

    Some train with several alone, even as a single process.
    """
    recordings = record(pool, script, world_size, options)
    if script.cuda_as_cpu and recordings.wants_devices():
        script = dataclasses.replace(script, devices=world_size)
        recordings = record(pool, script, world_size, options)
    return script, recordings


def record(pool: Pool, script: Script, world_size: int, options: Options) -> Recordings:
    """Runs the ranks, and one process, side by side, and records them."""
    folder = pool.folder / f"script{world_size}-{options.steps}-{script.devices}"
    alone = folder / "alone"
    alone.mkdir(parents=True)
    jobs = [
        Job(
            function="ddpcheck.run.script.recording:record",
            arguments={"script": script, "folder": str(place), "steps": options.steps},
        )
        for place in (folder, alone)
    ]
    tasks = [pool.submit(jobs[0], world_size), pool.submit(jobs[1], SOLO)]
    try:
        pool.wait(tasks)
    finally:
        pool.retire(world_size)
        pool.retire(SOLO)
    single = tasks[1].outcomes[0]
    return Recordings(
        folder=str(folder),
        asked=options.steps,
        ranks=tasks[0].outcomes,
        single=single,
        seconds=tasks[0].seconds,
        single_s=single.value.whole_s if single.kind == "done" else tasks[1].seconds,
    )
