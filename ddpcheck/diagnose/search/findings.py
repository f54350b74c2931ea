"""Causes and the results of their runs, as the report's findings."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from ddpcheck.diagnose.facts import rows
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import common_factor, ranks_disagree
from ddpcheck.diagnose.facts.text import names, number
from ddpcheck.diagnose.proposal import fix_of
from ddpcheck.diagnose.registry import FAULT_RULES
from ddpcheck.diagnose.search.causes import Cause
from ddpcheck.ranks.messages import Job
from ddpcheck.ranks.pool import SOLO
from ddpcheck.report.data import Finding
from ddpcheck.run.session.session import Session
from ddpcheck.run.spec import RunSpec

UNKNOWN = "unknown"

# Optimizers that divide a factor of the gradient out.
_ADAPTIVE = (
    "Adam",
    "AdamW",
    "Adamax",
    "NAdam",
    "RAdam",
    "Adagrad",
    "RMSprop",
    "Adadelta",
)


def make(
    causes: list[Cause],
    case: Case | None,
    rest: Case | None,
    runs: list[int],
    proven: Collection[int] = (),
    *,
    unknown_at: str | None = None,
) -> list[Finding]:
    """Returns one finding per cause, and an honest last one for what none explains.

    That is what happened where a rank raised, died or hung, and else an unknown.

    `rest` is the run with all fixes where it still differs, and `unknown_at` the line
    of an unknown. `proven` are those of
    `runs` that all fixes mend.
    """
    assert case is not None
    is_one = len(causes) == 1 and rest is None
    alone = len(causes) == 1
    found = [_finding(c, case, runs, sized=is_one, alone=alone) for c in causes]
    if rest is not None or not causes:
        last = _unexplained(rest or case, runs)
        found.append(dataclasses.replace(last, where=last.where or unknown_at))
    mended = tuple(i for i in runs if i in proven)
    return [dataclasses.replace(f, proven_runs=mended) for f in found]


def merge(known: list[Finding], new: list[Finding]) -> list[Finding]:
    """Returns both lists, findings of the same slug as one."""
    merged = list(known)
    for finding in new:
        for i, other in enumerate(merged):
            if other.slug == finding.slug:
                runs = tuple(sorted({*other.runs, *finding.runs}))
                proven = tuple(sorted({*other.proven_runs, *finding.proven_runs}))
                merged[i] = dataclasses.replace(
                    other,
                    runs=runs,
                    proven_runs=proven,
                    benign=other.benign and finding.benign,
                )
                break
        else:
            merged.append(finding)
    return merged


def _finding(
    cause: Cause, case: Case, runs: list[int], *, sized: bool, alone: bool = True
) -> Finding:
    """Returns a cause as a finding; `sized`: it alone makes the run differ.

    `alone`: no other fix was in force in the run that confirmed it.
    """
    p = cause.proposal
    evidence = dict(p.evidence)
    is_forward = p.link == "forward"
    if is_forward:
        evidence["modules"] = modules(case)
    return Finding(
        slug=p.slug,
        link=p.link,
        runs=tuple(runs),
        summary=p.summary,
        facts=p.facts,
        where=cause.where,
        magnitude=_magnitude(case) if sized and not is_forward else None,
        evidence=evidence,
        fix=fix_of(
            p,
            verified=cause.verified,
            before=cause.before,
            after=None if cause.verified is None else cause.after,
            is_alone=alone,
        ),
        controls=tuple(cause.controls),
        benign=p.benign,
    )


def place(session: Session, spec: RunSpec, proposal: Proposal) -> str | None:
    """Returns the line that a proposal is about: "file.py:3"."""
    return _found_at(session, spec, _place_keys(proposal.link, proposal.module))


def _found_at(session: Session, spec: RunSpec, keys: tuple[str, ...]) -> str | None:
    if not keys or (keys[0] == "loss" and spec.loss != "asis"):
        return None  # a built-in loss ran in the place of the target's
    arguments = {"ref": session.ref, "keys": keys}
    job = Job(function="ddpcheck.run.modes.jobs.places:find", arguments=arguments)
    value = session.pool.run(job, SOLO)[0].value
    return value if isinstance(value, str) else None


def place_of_unknown(session: Session, spec: RunSpec, case: Case) -> str | None:
    """Returns the target's line for the link that breaks first."""
    if any(rule.detect(case) for rule in FAULT_RULES):
        return None  # they say where a rank was
    link, module = _link(case), None
    if link == "forward":
        module = next((m.name for m in case.diverging()), None)
    return _found_at(session, spec, _place_keys(link, module))


def _place_keys(link: str, module: str | None) -> tuple[str, ...]:
    """Returns what to look up for a finding's place, the best first."""
    if module is not None:
        return (f"module {module}",)
    if link == "loss":
        return ("loss", "train_step")
    if link == "data":
        return ("train_step", "batch")
    if link in ("reduce", "backward"):
        return ("train_step", "wrap")
    return ("train_step", "optimizer") if link == "update" else ()


def _link(case: Case) -> str:
    """Returns the link that breaks first."""
    return "data" if _moment(case) else _where(case)[0]


def _moment(case: Case) -> rows.Moment | None:
    """Returns the step whose samples are others, None where the ranks make them so."""
    moment = rows.first_wrong(case)
    return None if moment is None or rows.foreign(case, moment) else moment


def modules(case: Case) -> list[dict[str, object]]:
    """Returns every module's own difference in call order, for the picture."""
    return [
        {
            "name": m.name or "(model)",
            "rel_diff": m.rel_diff,
            "diverges": m.rel_diff > case.close,
        }
        for m in case.modules()
        if m.rel_diff is not None
    ]


def _unexplained(case: Case, runs: list[int]) -> Finding:
    for rule in FAULT_RULES:
        proposal = rule.detect(case)
        if proposal is not None:
            cause = Cause(proposal, where=proposal.evidence["where"])
            return _finding(cause, case, runs, sized=True)
    return _unknown(case, runs)


def _unknown(case: Case, runs: list[int]) -> Finding:
    moment = _moment(case)
    link, where = _where(case)
    if moment is not None:
        link, where = "data", f", in step {moment.step + 1}"
    worst = next(
        (
            q.worst
            for q in (case.run.gradients, case.run.weights, case.run.buffers)
            if q.mismatched and q.worst
        ),
        None,
    )
    facts = [*_samples(moment), *_first(case)]
    if worst is not None:
        facts.append(
            f"worst: {worst.name} in step {worst.step + 1}, relative difference "
            f"{number(worst.rel_diff)}"
        )
    factor = common_factor(case)
    if factor is not None:
        facts.append(
            f"all gradients that differ in the first step are {number(factor)} "
            "times the single-process ones"
        )
    if lost := case.outcome.facts().get("set_on_wrapper"):
        facts.append(
            "set on the wrapper and not on the model inside, which keeps its own "
            f"value: {names(lost)}"
        )
    if case.probe_failed:
        facts.append(f"no link could be judged separately: {case.probe_failed}")
    if case.ratios():
        facts.append(
            "the loss's gradient at the single-process outputs, divided by the "
            "single-process one, per rank: "
            + ", ".join(number(r) for r, _ in case.ratios()[:8])
            + f", expected {case.world_size}"
        )
    return Finding(
        slug=UNKNOWN,
        link=link,
        runs=tuple(runs),
        summary=f"the cause is unknown; it starts in the {link} link{where}",
        facts=tuple(facts),
        evidence={"modules": modules(case)},
    )


def _where(case: Case) -> tuple[str, str]:
    """Returns the first link that breaks, and where in it."""
    diverging = case.diverging()
    if diverging and not case.outputs_agree:
        return "forward", f", at {diverging[0].name or 'the model itself'}"
    if case.has_cuts and not case.loss_is_sound:
        return "loss", ""
    if case.reduce_is_broken:
        return "reduce", ""
    gradients, weights = case.first_broken("gradients"), case.first_broken("weights")
    if weights is not None and (gradients is None or weights < gradients):
        return "update", f", in step {weights + 1}"
    if gradients is None:
        return "update", ""
    return ("update" if gradients else "backward"), f", in step {gradients + 1}"


def _samples(moment: rows.Moment | None) -> list[str]:
    """Returns a sentence on the moment at which the data link breaks."""
    if moment is None:
        return []
    return [
        f"samples in step {moment.step + 1}: {len(moment.one)} in the "
        f"single-process run, {', '.join(str(len(r)) for r in moment.ranks[:8])} on "
        f"the ranks; on no rank: {sum(moment.missing.values())}; not in the "
        f"single-process run: {sum(moment.foreign.values())}; repeated: "
        f"{sum(moment.repeated.values())}"
    ]


def _first(case: Case) -> list[str]:
    """Returns a sentence on what differs first, none where that is an output."""
    for step in range(case.outcome.spec.steps):
        for quantity in ("gradients", "weights", "buffers"):
            found = case.mismatched(quantity, step)
            if found:
                do = "differ" if ranks_disagree(case, quantity, step) else "agree"
                where = f"{quantity} in step {step + 1}, of {names(found)}"
                is_rest = bool(case.outcome.spec.fixes)  # with a fix in force
                still = "still " if is_rest else ""
                return [f"first to {still}differ: {where}; the ranks {do}"]
    return []


def _magnitude(case: Case) -> str | None:
    """Returns a sentence on what one factor on all gradients means for training.

    None where the gradients do not differ by one factor: then no learning rate makes
    the run equal.
    """
    ratio = case.uniform_ratio
    if ratio is None or not ratio:
        return None
    factor = ratio / case.world_size
    if abs(factor - 1) <= case.close:
        return None
    if case.direct():
        return None  # a penalty on the weights has no part in it
    optimizer = case.facts["optimizer"]
    rate = case.facts["learning_rate"]
    if any(optimizer.startswith(name) for name in _ADAPTIVE):
        return (
            f"all gradients differ by the factor {number(factor)}; {optimizer} "
            "divides it out again, so weight updates are equal, but clipping, "
            "weight decay in the gradient and epsilon are not "
            "(numeric/scale-invariant-optimizer)"
        )
    if rate is None or _decays(case):
        return f"all gradients differ by the factor {number(factor)}"
    return (
        f"all gradients differ by the factor {number(factor)}: {optimizer} with the "
        f"learning rate {number(rate / factor)} instead of {number(rate)} would "
        "give equal training"
    )


def _decays(case: Case) -> bool:
    """Returns whether the optimizer adds a term that no gradient scales."""
    groups = (group for _, numbers in case.facts["schedule"] for group in numbers)
    return any(group.get("weight_decay") for group in groups)
