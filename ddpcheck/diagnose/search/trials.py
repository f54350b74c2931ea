"""Runs with the interventions of proposals: the divergence that remains with them."""

from __future__ import annotations

import dataclasses
import math

from ddpcheck.diagnose.facts.case import Proposal
from ddpcheck.diagnose.facts.experiments import Experiment
from ddpcheck.diagnose.search.acts import ActsOfRanks, by_intervention
from ddpcheck.diagnose.search.causes import scaled_to
from ddpcheck.errors.problem import cut
from ddpcheck.report.data import Run, Tolerance
from ddpcheck.run.modes.averaged import AVERAGED
from ddpcheck.run.session import assemble, noise_floor
from ddpcheck.run.session.session import Session
from ddpcheck.run.spec import RunOutcome, RunSpec


class Trials:
    """The runs that decide on the causes of one divergent run.

    Args:
        session: of the target.
        spec: of the divergent run.
        limit: the tolerance.
    """

    def __init__(self, session: Session, spec: RunSpec, limit: Tolerance) -> None:
        self.session, self.spec, self.limit = session, spec, limit
        # The least excess that each fix has left, by slug.
        self.left: dict[str, float] = {}
        # What each intervention changed, in the first run that has it.
        self.acts: dict[str, ActsOfRanks] = {}

    def with_fixes(self, spec: RunSpec, proposals: list[Proposal]) -> RunSpec:
        """Returns the spec with the interventions of these proposals."""
        fixes = tuple(dict.fromkeys(f for p in proposals for f in p.fixes))
        noise = next((p.noise for p in proposals if p.noise), spec.noise)
        mode = AVERAGED.name if any(p.by_hand for p in proposals) else spec.mode
        scaled = tuple(
            scaled_to(f, self.spec.world_size, spec.world_size) for f in fixes
        )
        return spec.but(fixes=spec.fixes + scaled, noise=noise, mode=mode)

    def of(self, proposals: list[Proposal], taken: list[Proposal]) -> dict[str, float]:
        """Returns the worst excess that is left with each of them, by slug.

        Args:
            proposals: on trial, each by itself.
            taken: those whose fixes are in force already.
        """
        specs = [self.with_fixes(self.spec, [*taken, p]) for p in proposals]
        if proposals:
            slugs = [p.slug for p in proposals]
            self.session.progress.detail(f"trying {cut(slugs, 2)}")
        values = self.excesses(specs)
        found = {p.slug: v for p, v in zip(proposals, values, strict=True)}
        for slug, value in found.items():
            self.left[slug] = min(value, self.left.get(slug, math.inf))
        return found

    def together(self, proposals: list[Proposal]) -> float:
        """Returns the worst excess with the fixes of these proposals."""
        combined = self.with_fixes(self.spec, proposals)
        return math.inf if combined == self.spec else self.excesses([combined])[0]

    def passes_control(self, proposal: Proposal, taken: list[Proposal]) -> bool:
        """Returns whether the proposal's control, if any, makes the run equal."""
        if not proposal.control:
            return True
        control = dataclasses.replace(proposal, fixes=proposal.control)
        return self.excesses([self.with_fixes(self.spec, [*taken, control])])[0] <= 1

    def can_train(
        self, proposal: Proposal, tested: dict[str, float], taken: list[Proposal]
    ) -> bool:
        """Returns whether the single-process run trains with the fix.

        The target's own update may need a hook that the fix removes.
        """
        if tested.get(proposal.slug) != math.inf:
            return True
        return self.session.trains(self.with_fixes(self.spec, [*taken, proposal]))

    def experiment(self, spec: RunSpec, experiment: Experiment) -> Run:
        """Returns the run of an experiment on the run with this spec.

        "not-checked" if the single-process run does not train in it.
        """
        spec = experiment.of(spec)
        if not self.session.trains(spec):
            size = spec.world_size
            return Run(mode=spec.mode, world_size=size, verdict="not-checked")
        outcome = self.session.run([spec])[0]
        return assemble.to_run(outcome, self.limit.rtol)

    def excesses(self, specs: list[RunSpec]) -> list[float]:
        """Returns the worst excess of every spec, inf if it faults.

        Also inf if the single-process run does not train with that change.
        """
        able = [spec for spec in specs if self.session.trains(spec)]
        outcomes = dict(zip(able, self._run(able), strict=True))
        return [
            self._excess_of(outcomes[spec]) if spec in outcomes else math.inf
            for spec in specs
        ]

    def _run(self, specs: list[RunSpec]) -> list[RunOutcome]:
        """Returns the outcomes; runs once more what was ended from outside.

        That says nothing of the fix.
        """
        outcomes = self.session.run(specs)
        for index, outcome in enumerate(outcomes):
            if any(rank.was_ended_from_outside for rank in outcome.ranks):
                outcomes[index] = self.session.run([outcome.spec])[0]
            self.acts = by_intervention(outcomes[index]) | self.acts
        return outcomes

    def _excess_of(self, outcome: RunOutcome) -> float:
        limit = noise_floor.where_changed(self.session, outcome, self.limit)
        return assemble.worst_excess(assemble.to_run(outcome, limit.rtol))
