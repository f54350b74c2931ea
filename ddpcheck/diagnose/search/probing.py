"""The evidence of one run: measurements in the reference and in every rank."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from ddpcheck.diagnose.probes.evidence import (
    RankEvidence,
    ReferenceEvidence,
    StepEvidence,
)
from ddpcheck.ranks.messages import Job, Outcome
from ddpcheck.ranks.pool import SOLO
from ddpcheck.report.data import Run
from ddpcheck.run.session.session import Asked, Session, is_quick
from ddpcheck.run.spec import RunSpec


class _Key(NamedTuple):
    spec: RunSpec  # of the reference
    world_size: int
    trains_before: bool


class References:
    """The probe of each reference that a search needs, run once.

    `train_before`: probes train the steps before the one that they measure.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: dict[_Key, tuple[ReferenceEvidence | None, str]] = {}
        self._begun: dict[_Key, Asked] = {}
        self.train_before = False

    @contextlib.contextmanager
    def ahead(self, spec: RunSpec, run: Run) -> Iterator[None]:
        """Starts the reference's part of `probe` while the ranks run.

        Inside, no other job needs the single process: their references exist.
        """
        key = self._key(spec, run)
        if key not in self._known and is_quick(self._session.reference(spec)):
            self._begun[key] = self._submit(key)
        try:
            yield
        except BaseException:
            self._begun.clear()
            self._session.pool.retire(SOLO)  # idle
            raise

    def of(self, spec: RunSpec, run: Run) -> tuple[ReferenceEvidence | None, str]:
        """Returns the evidence, or None and what ended the probe."""
        key = self._key(spec, run)
        if key not in self._known:
            begun = self._begun.pop(key, None) or self._submit(key)
            (outcome,) = self._session.end(begun)
            if not run.faults and outcome.was_ended_from_outside:
                (outcome,) = self._session.end(self._submit(key))
            value = outcome.value
            is_there = isinstance(value, ReferenceEvidence) and not value.failed
            self._known[key] = (
                (value, "") if is_there else (None, _why(self._session, [outcome]))
            )
        return self._known[key]

    def _key(self, spec: RunSpec, run: Run) -> _Key:
        """Returns the reference's spec, with the steps to look at, and the world size.

        Always on the CPU: evidence is exact there, and fixes are tried on the run
        itself.
        """
        single = self._session.reference(spec.but(device="cpu")).spec
        assert single is not None
        steps = first_wrong_batch(run, spec.steps) + 1
        return _Key(single.but(steps=steps), spec.world_size, self.train_before)

    def _submit(self, key: _Key) -> Asked:
        job = Job(
            function="ddpcheck.diagnose.probes.reference:record",
            arguments={
                "ref": self._session.ref,
                "spec": key.spec,
                "world_size": key.world_size,
                "trains_before": key.trains_before,
            },
        )
        return self._session.begin(job, SOLO)


def probe(
    session: Session, references: References, spec: RunSpec, run: Run
) -> tuple[StepEvidence | None, str]:
    """Returns the evidence of the run, or None and what ended the probe."""
    reference, failed = references.of(spec, run)
    spec = spec.but(device="cpu", steps=first_wrong_batch(run, spec.steps) + 1)
    if reference is None:
        return None, failed
    # Indices of the reference's rows may be none of a shard's: with the ranks' own if
    # they raise, and the run does not.
    for feeds_indices in (True, False):
        told = _of_ranks(session, spec, reference, feeds_indices, references)
        if not run.faults and any(rank.was_ended_from_outside for rank in told):
            told = _of_ranks(session, spec, reference, feeds_indices, references)
        ranks = [o.value for o in told if isinstance(o.value, RankEvidence)]
        raised = any(r.failed for r in ranks)
        if len(ranks) == len(told) and not raised:
            evidence = StepEvidence(
                world_size=spec.world_size, reference=reference, ranks=tuple(ranks)
            )
            return evidence, ""
        failed = _why(session, told)
        if not raised or any(f.kind == "raised" for f in run.faults):
            break
    return None, failed


def _of_ranks(
    session: Session,
    spec: RunSpec,
    reference: ReferenceEvidence,
    feeds_indices: bool,  # noqa: FBT001
    references: References,
) -> list[Outcome]:
    """Returns what the ranks measure for every module and the loss."""
    job = Job(
        function="ddpcheck.diagnose.probes.rank:judge",
        arguments={
            "ref": session.ref,
            "spec": spec,
            "trace": reference.trace,
            "count_names": tuple(reference.counts),
            "feeds_indices": feeds_indices,
            "trains_before": references.train_before,
        },
        files=("trace",),
    )
    return session.ask(job, spec.world_size)


def first_wrong_batch(run: Run, steps: int) -> int:
    """Returns the step whose batch shows the error, with the start weights.

    It is that of the first wrong gradients, if all weights and buffers before it are
    right: until then the shards had equal counts. 0 if there is no such step.
    """
    series = (run.gradients, run.weights, run.buffers)
    gradients, *state = (q.excess_by_step for q in series)
    if any(len(excesses) not in (0, steps) for excesses in (gradients, *state)):
        return 0
    found = next((i for i, e in enumerate(gradients) if e > 1), 0)
    is_right = all(e <= 1 for excesses in state for e in excesses[:found])
    return found if is_right else 0


def _why(session: Session, outcomes: list[Outcome]) -> str:
    """Returns what ended a probe: the last line of the first that failed."""
    stacks = [
        o.raised.stack if o.raised else getattr(o.value, "failed", "") or ""
        for o in outcomes
    ]
    for stack in stacks:
        session.note_failure(stack)
    lines = [stack.rstrip().rpartition("\n")[2] for stack in stacks if stack]
    others = [o.kind for o in outcomes if o.kind != "done"]
    return (lines or others or [""])[0]
