"""The search for the causes of one divergent run: fix the first link, run again.

Rules propose, runs decide: a proposal's intervention is applied to the real run, and
the cause is verified if the rest is within tolerance. With several causes each is
verified by a run without its fix alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.experiments import answered
from ddpcheck.diagnose.facts.faults import busy_ranks
from ddpcheck.diagnose.proposal import with_own_average
from ddpcheck.diagnose.registry import HIDDEN, LAST, RULES, asked
from ddpcheck.diagnose.search import components, findings
from ddpcheck.diagnose.search.causes import (
    Cause,
    can_run,
    covered,
    ends_search,
    is_side_effect,
    is_weak,
    joined,
    mended,
    proposed,
    second_causes,
    verified,
    with_more_evidence,
)
from ddpcheck.diagnose.search.choosing import Round
from ddpcheck.diagnose.search.probing import References, first_wrong_batch, probe
from ddpcheck.diagnose.search.trials import Trials
from ddpcheck.report.data import Finding, Tolerance
from ddpcheck.run import intervention
from ddpcheck.run.intervention import GlobalLoss
from ddpcheck.run.modes.averaged import AVERAGED
from ddpcheck.run.session import assemble
from ddpcheck.run.session.session import Session
from ddpcheck.run.spec import RunOutcome, RunSpec

_MAX_ROUNDS = 8
_MAX_PAIRS = 4  # proposals that are fixed first: each is a search of its own
_ORDER = {rule.SLUG: place for place, rule in enumerate(RULES)}


class Search:
    """The search for the causes of one divergent run."""

    def __init__(
        self, session: Session, outcome: RunOutcome, limit: Tolerance, *, fix: bool
    ) -> None:
        self.session, self.limit, self.fix = session, limit, fix
        self.spec, self.outcome = outcome.spec, outcome
        self.trials = Trials(session, outcome.spec, limit)
        self.references = References(session)
        self.case: Case | None = None
        self.rest: Case | None = None  # what no cause explains
        self.unknown_at: str | None = None  # and its line
        self.refuted: set[str] = set()
        self.repeats = True
        self.falls_back = False
        self.causes: list[Cause] = []  # what `run` has returned
        self.firm: dict[str, Proposal] = {}  # of all rounds, those that can be run
        self.quiet: Proposal | None = None  # what takes all noise out
        self.can_fall_back = False  # when one was taken up, some had a fallback

    def run(self) -> list[Cause]:
        """Returns the causes in the order of the chain, verified as far as possible.

        First from the first step on. If that does not explain the run: from the last
        step that is still right; with fallbacks, which fix more than their own cause;
        with one cause fixed first; and with what would mend almost anything.
        """
        causes = self._apart(self._attempt())
        if self.fix and self._is_late() and (self.rest is not None or is_weak(causes)):
            causes = self._again(causes, train_before=True)
        if self.rest is not None:
            causes = self._explaining_more(causes)
        if self.case is not None and self.rest is None:
            causes += self._hidden(self.case, causes)
        for cause in causes:
            cause.where = findings.place(self.session, self.spec, cause.proposal)
        open_case = self.rest or (None if causes else self.case)
        if open_case is not None:
            given = self.session, self.spec, open_case
            self.unknown_at = findings.place_of_unknown(*given)
        self.causes = causes
        return causes

    def _explaining_more(self, causes: list[Cause]) -> list[Cause]:
        """Returns causes that explain the rest as well, or these if none do."""
        if self.can_fall_back:
            self.falls_back = True
            causes = self._again(causes)
            if self.rest is not None and self.fix and self._is_late():
                causes = self._again(causes, train_before=True)
        if self.rest is not None and self.fix and (causes or self.quiet):
            causes = self._one_first() or causes
        if self.rest is not None and self.fix:
            causes = self._with_the_last(self.rest, causes)
        return causes

    def _again(self, causes: list[Cause], *, train_before: bool = False) -> list[Cause]:
        """Returns the causes of another attempt, or these if it explains no more.

        `train_before`: probes use the model at the last step that is still right.
        """
        first = self.case, self.rest
        self.case, self.refuted = None, set()
        self.references.train_before = train_before
        again = self._attempt()
        of_the_loss = all(cause.proposal.link == "loss" for cause in again)
        is_more = of_the_loss and not is_weak(again)
        if self.rest is None and (first[1] is not None or is_more):
            return again
        self.case, self.rest = first
        return causes

    def _is_late(self) -> bool:
        """Returns whether all is right up to a later step, where probes can begin."""
        run = assemble.to_run(self.outcome, self.limit.rtol)
        runs = [run] if self.rest is None else [run, self.rest.run]  # that with fixes
        return any(first_wrong_batch(run, self.spec.steps) > 0 for run in runs)

    def _attempt(self) -> list[Cause]:
        causes: list[Cause] = []
        before: Case | None = None
        for _ in range(_MAX_ROUNDS):
            taken = [c.proposal for c in causes]
            case = self._case(self.trials.with_fixes(self.spec, taken))
            if self.case is None:
                self.case = case
            if case.run.verdict == "equivalent":
                break
            proposals = self._proposed(case)
            if causes and before and not mended(causes[-1], before, case, proposals):
                if causes[-1].proposal.needs_no_proof:
                    self.rest = None
                    break
                self.refuted.add(causes.pop().proposal.slug)
                taken, case = taken[:-1], before
                proposals = self._proposed(case)
            proposals = self._open(proposals, taken)
            self.rest = case
            cause = self._choose(case, proposals, taken)
            if cause is None:
                break
            if is_side_effect(self.case, case, taken, cause.proposal):
                causes[-1] = joined(causes[-1], cause)
            else:
                causes.append(cause)
            self.can_fall_back |= any(p.fallback for p in proposals)
            before = case
            if cause.verified or not self.fix or ends_search(cause.proposal):
                self.rest = None
                break
        if len(causes) > 1:
            self._leave_one_out(causes)
        return causes

    def _open(self, proposals: list[Proposal], taken: list[Proposal]) -> list[Proposal]:
        """Returns the proposals that are neither taken up nor refuted; notes firm ones.

        With noise that follows the sample the loss to judge is another one.
        """
        known = {t.slug for t in taken} | self.refuted
        found = [p for p in second_causes(proposals, taken) if p.slug not in known]
        for p in found:
            if can_run(p) and not (p.speculative or p.noise):
                self.firm.setdefault(p.slug, p)
            self.quiet = p.fallback if p.noise else self.quiet
        return found

    def findings(self, runs: list[int], proven: Collection[int] = ()) -> list[Finding]:
        """Returns what `run` found, for the report.

        Args:
            runs: those of the report that it stands for.
            proven: those of them that all fixes mend.
        """
        return findings.make(
            self.causes,
            self.case,
            self.rest,
            runs,
            proven,
            unknown_at=self.unknown_at,
            tried=self.trials.left,
            acts=self.trials.acts,
        )

    def mended(self) -> Callable[[RunSpec], RunSpec] | None:
        """Returns what adds all causes' fixes to a spec, if each is proven."""
        proposals = [cause.proposal for cause in self.causes if cause.verified]
        if not proposals or len(proposals) < len(self.causes):
            return None
        return lambda spec: self.trials.with_fixes(spec, proposals)

    @property
    def is_proven(self) -> bool:
        """Whether the fixes of all causes make the run equal."""
        told = [cause.verified for cause in self.causes]
        return self.rest is None and True in told and False not in told

    def _proposed(self, case: Case) -> list[Proposal]:
        return proposed(case, partial(self.trials.experiment, case.outcome.spec))

    def _hidden(self, case: Case, causes: list[Cause]) -> list[Cause]:
        """Returns what the ranks' own numbers show although a fix hides it.

        With the global loss on every rank, a learning rate computed from it is the same
        on all ranks, and parameters of the loss get their whole gradient.
        """
        fixes = [fix for cause in causes for fix in cause.proposal.fixes]
        if case.run.faults or intervention.found(fixes, GlobalLoss) is None:
            return []
        known = {cause.proposal.slug for cause in causes}
        make = partial(self.trials.experiment, case.outcome.spec)
        found = [
            answered(partial(asked, rule, case, detect), case.experiments, make)
            for rule, detect in HIDDEN
            if rule.SLUG not in known
        ]
        return [Cause(p, before=causes[0].before) for p in found if p is not None]

    def _case(self, spec: RunSpec) -> Case:
        self.session.progress.detail("looking for the first difference between ranks")
        by_hand, watched = spec.but(mode=AVERAGED.name), self._watched(spec)
        specs = dict.fromkeys((spec, by_hand, *watched))
        wanted = [s for s in specs if s != self.spec]
        made = dict(zip(wanted, self._beside_the_probe(spec, wanted), strict=True))
        made[self.spec] = self.outcome
        outcomes = [made[spec], made[by_hand]]
        runs = [assemble.to_run(o, self.limit.rtol) for o in outcomes]
        if all(map(busy_ranks, runs)):
            probed, failed = None, "ranks hang in the user's code"
        else:
            probed, failed = probe(self.session, self.references, spec, runs[0])
        case = Case(
            run=runs[0],
            outcome=outcomes[0],
            by_hand=runs[-1],
            by_hand_outcome=outcomes[-1],
            watched=made[watched[0]] if watched else None,
            probed=probed,
            probe_failed=failed,
            rtol=self.limit.rtol,
            facts=outcomes[0].reference.facts,
            repeats=self.repeats,
        )
        return components.as_mended(case)

    def _beside_the_probe(
        self, spec: RunSpec, wanted: list[RunSpec]
    ) -> list[RunOutcome]:
        """Returns the outcomes of `wanted`; the reference is probed meanwhile."""
        # Ranks that fail are waited for, and replaced in any case.
        fails = any(rank.kind != "done" for rank in self.outcome.ranks)
        if fails or spec != self.spec:
            return self.session.run(wanted, apart=fails)
        for each in wanted:
            self.session.reference(each)
        run = assemble.to_run(self.outcome, self.limit.rtol)
        with self.references.ahead(spec, run):
            return self.session.run(wanted)

    def _watched(self, spec: RunSpec) -> tuple[RunSpec, ...]:
        """Returns the run once more, with its samples recorded, if it may choose them.

        Not if it cannot be observed: a scripted model, a traced step.
        """
        facts = self.outcome.reference.facts
        if not (facts["has_train_step"] or facts["asks_distributed"]):
            return ()
        watched = spec.but(watch=True)
        return (watched,) if self.session.trains(watched) else ()

    def _choose(
        self, case: Case, proposals: list[Proposal], taken: list[Proposal]
    ) -> Cause | None:
        """Returns the cause to take up; without runs it is the first with evidence."""
        if not self.fix:
            firm = [p for p in proposals if not p.speculative]
            before = assemble.worst_excess(case.run)
            return Cause(firm[0], before=before) if firm else None
        turn = Round(
            trials=self.trials, case=case, taken=taken, falls_back=self.falls_back
        )
        return turn.choose(proposals)

    def _together(self, firm: list[Proposal]) -> list[Cause]:
        """Returns the fewest of these proposals that together make the run equal.

        The search goes from link to link by probes, which cannot always show whether a
        fix repaired its link; runs can.
        """
        if len(firm) < 2 or self.trials.together(firm) > 1:  # noqa: PLR2004
            return []
        # Fixes that leave the least come first; a narrower fix is more precise.
        for proposal in sorted(firm, key=lambda p: p.is_wide, reverse=True):
            rest = [p for p in firm if p is not proposal]
            if self.trials.together(rest) <= 1:
                firm = rest
        if len(firm) < 2:  # noqa: PLR2004
            return []  # its control spoke against it
        causes = [
            Cause(p, after=self.trials.together(firm), verified=True) for p in firm
        ]
        self._leave_one_out(causes)
        return causes

    def _with_the_last(self, rest: Case, causes: list[Cause]) -> list[Cause]:
        """Returns the causes and one that is tried if no other explains the rest."""
        taken = [cause.proposal for cause in causes]
        known = {p.slug for p in taken}
        last = (asked(rule, rest, detect) for rule, detect in LAST)
        found = [p for p in last if p is not None and p.slug not in known]
        tested = self.trials.of(found, taken)
        proven = [p for p in found if tested[p.slug] <= 1][:1]
        before = assemble.worst_excess(rest.run)
        self.rest = None if proven else rest
        return causes + [verified(p, before, {p.slug: tested[p.slug]}) for p in proven]

    def _one_first(self) -> list[Cause]:
        """Returns one of the causes with evidence and one proven with it fixed.

        One fix of two does not make the run equal, so a proposal on trial is not taken
        up, and evidence may point to another cause than the right one.
        """
        firm = [p for p in (self.quiet, *self.firm.values()) if p is not None]
        narrow = [p for p in firm if not (p.is_wide or p.last_resort)]
        for proposal in narrow[:_MAX_PAIRS]:
            other = self._beside([proposal])
            if other is None:
                continue
            pair = [Cause(proposal, after=other.after, verified=True), other]
            pair.sort(key=lambda cause: _ORDER[cause.proposal.slug])
            self._leave_one_out(pair)
            if len(pair) > 1:
                self.rest = None
                return pair
            break  # one of them was none
        return []

    def _beside(self, others: list[Proposal]) -> Cause | None:
        """Returns the causes that runs prove with these fixed."""
        case = self._case(self.trials.with_fixes(self.spec, others))
        if case.run.verdict == "equivalent":
            return None
        slugs = {p.slug for p in others}
        proposals = [
            p
            for p in second_causes(self._proposed(case), others)
            if p.slug not in slugs
        ]
        cause = self._choose(case, proposals, others)
        return cause if cause and cause.verified else None

    def _apart(self, causes: list[Cause]) -> list[Cause]:
        """Returns the causes that one average by hand fixed, one per parameter set."""
        by_hand = next((c for c in causes if c.verified and c.proposal.by_hand), None)
        if by_hand is None or not by_hand.proposal.local:
            return causes
        found = {slug: p for slug, p in self.firm.items() if p.local}
        others = [c.proposal for c in causes if c.proposal.slug not in found]
        parts = [with_own_average(p) for p in found.values()]
        return (len(parts) > 1 and self._together(others + parts)) or causes

    def _leave_one_out(self, causes: list[Cause]) -> None:
        """Judges every cause by the run with all fixes but its own."""
        every = [c.proposal for c in causes]
        if not causes or not causes[-1].verified:
            return
        after = causes[-1].after
        specs = [
            self.trials.with_fixes(self.spec, [p for p in every if p is not q])
            for q in every
        ]
        for cause, before in zip(causes, self.trials.excesses(specs), strict=True):
            cause.before, cause.after = before, after
            cause.verified = before > 1 >= after
        told = [c for c in causes if c.verified]
        for cause in causes:
            if cause not in told and covered(cause, told):
                cause.verified = None  # no run separates it from the wider fix
        kept = [c for c in causes if c.verified is not False]
        dropped = [c for c in causes if c.verified is False]
        causes[:] = [with_more_evidence(c, dropped) for c in kept]
