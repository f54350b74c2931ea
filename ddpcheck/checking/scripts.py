"""Checks a training script: the ranks first, then one process on what they drew."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ddpcheck.checking import checking, opening
from ddpcheck.ranks.messages import Job, Outcome
from ddpcheck.ranks.pool import SOLO, Pool, Preload
from ddpcheck.report.data import Report
from ddpcheck.report.progress import Silent
from ddpcheck.run.session.session import Session
from ddpcheck.target import script as scripts
from ddpcheck.target.options import Options
from ddpcheck.target.script import Known, Script
from ddpcheck.target.target import TargetRef

_MODULES = (
    *opening.PRELOAD_FIRST,
    "ddpcheck.run.script.recording",
    "ddpcheck.run.script.as_target",
)


def check_script(
    script: Script, options: Options, *, progress: Silent | None = None
) -> Report:
    """Checks a script at one world size."""
    progress = progress or Silent()
    what = Preload(
        modules=_MODULES,
        later=opening.PRELOAD_LATER,
        libraries=scripts.libraries(script),
    )
    with Pool(what, timeout_s=options.limit_s) as pool:
        pool.start()
        progress("importing torch")
        pool.wait_for_imports()
        world_size = (options.world_sizes or (2,))[0]
        recordings = record(pool, script, world_size, options.steps)
        known = recordings.known()
        session = Session(pool, _ref(script, known))
        asked = dataclasses.replace(
            options,
            world_sizes=(world_size,),
            modes=options.modes or ("ddp",),
            steps=known.steps,
        )
        return checking.check(
            pool, session.ref, asked, session=session, progress=progress
        )


@contextlib.contextmanager
def _opened(script: Script, options: Options, progress: Silent) -> Iterator[Pool]:
    """Yields a pool that has imported what the script will import."""
    libraries = scripts.libraries(script)
    while True:
        what = Preload(
            modules=_MODULES, later=opening.PRELOAD_LATER, libraries=libraries
        )
        with Pool(what, timeout_s=options.limit_s) as pool:
            pool.start()
            progress("importing torch and what the script imports")
            pool.wait_for_imports()
            if not pool.unfit:
                yield pool
                return
        libraries = ()  # one of them starts threads: processes import it themselves


def _ref(script: Script, known: Known) -> TargetRef:
    return TargetRef(
        path=script.path or None,
        factory="ddpcheck.run.script.as_target:load",
        arguments=(("script", script), ("known", known)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recordings:
    """What the ranks and the single process recorded of a script."""

    folder: str
    asked: int
    ranks: list[Outcome]
    single: Outcome

    def known(self) -> Known:
        """Returns what later runs have to know."""
        steps = min(self.asked, *map(_steps, self.ranks))
        models = [o.value.model for o in self.ranks if o.kind == "done"]
        return Known(
            folder=self.folder,
            world_size=len(self.ranks),
            steps=steps,
            model=models[0] if models else None,
            passes=tuple(sorted(_passes(self.ranks).items())),
            split=self._split(),
            ahead=tuple(_ahead(self.ranks[0])),
        )

    def _split(self) -> int:
        def drawn(outcome: Outcome) -> Counter[int]:
            return Counter(e.step for e in outcome.progress if _is(e, "Drawn"))

        ranks, single = drawn(self.ranks[0]), drawn(self.single)
        step = 1 if 1 in ranks and 1 in single else 0
        world_size = len(self.ranks)
        return world_size if single[step] == world_size * ranks[step] > 0 else 1


def _is(event: Any, name: str) -> bool:
    # The classes are of modules that import torch.
    return type(event).__name__ == name


def _ahead(rank: Outcome) -> Iterator[tuple[int, int, int]]:
    """Yields the loaders that draw ahead: see Known.

    Before the first update such a loader has drawn more than between later ones.
    """
    drawn = Counter((e.loader, e.step) for e in rank.progress if _is(e, "Drawn"))
    for loader in sorted({loader for loader, _ in drawn}):
        used, more = drawn[loader, 1], drawn[loader, 0] - drawn[loader, 1]
        if used and more > 0:
            yield loader, used, more


def _steps(outcome: Outcome) -> int:
    return sum(_is(event, "Updated") for event in outcome.progress)


def _passes(ranks: list[Outcome]) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    for outcome in ranks:
        for event in outcome.progress:
            if _is(event, "Passed"):
                key = event.loader, event.turn
                found[key] = max(event.batches, found.get(key, 0))
    return found


def record(pool: Pool, script: Script, world_size: int, steps: int) -> Recordings:
    """Runs the ranks, and one process, side by side, and records them."""
    folder = pool.folder / f"script{world_size}"
    single = folder / "single"
    single.mkdir(parents=True)
    jobs = [
        Job(
            function="ddpcheck.run.script.recording:record",
            arguments={"script": script, "folder": str(place), "steps": steps},
        )
        for place in (folder, single)
    ]
    tasks = [pool.submit(jobs[0], world_size), pool.submit(jobs[1], SOLO)]
    pool.wait(tasks)
    pool.retire(world_size)
    pool.retire(SOLO)
    return Recordings(
        folder=str(folder),
        asked=steps,
        ranks=tasks[0].outcomes,
        single=tasks[1].outcomes[0],
    )
