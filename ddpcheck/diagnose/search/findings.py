"""Causes and the results of their runs, as the report's findings."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.text import number
from ddpcheck.diagnose.proposal import fix_of, replaced
from ddpcheck.diagnose.registry import FAULT_RULE
from ddpcheck.diagnose.search import unknown
from ddpcheck.diagnose.search.acts import ActsOfRanks, with_lines
from ddpcheck.diagnose.search.causes import Cause
from ddpcheck.ranks.messages import Job
from ddpcheck.ranks.pool import SOLO
from ddpcheck.report.data import Finding, ModuleRow
from ddpcheck.run.session.session import Session
from ddpcheck.run.spec import RunSpec

UNKNOWN = unknown.SLUG

# What lines of a script do; a target file has no such parts.
_OF_SCRIPT = ("forward", "backward")
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
    tried: Mapping[str, float] | None = None,
    acts: Mapping[str, ActsOfRanks] | None = None,
) -> list[Finding]:
    """Returns one finding per cause, and an honest last one for what none explains.

    That is what happened where a rank raised, died or hung, and else an unknown.

    `rest` is the run with all fixes where it still differs, and `unknown_at` the line
    of an unknown. `proven` are those of `runs` that all fixes mend. `tried` has the
    excess that the fixes of other causes leave, by slug. `acts` are what each
    intervention changed.
    """
    assert case is not None
    causes = [_with_lines(cause, acts or {}) for cause in causes]
    is_one = len(causes) == 1 and rest is None
    alone = len(causes) == 1
    found = [_finding(c, case, runs, sized=is_one, alone=alone) for c in causes]
    if rest is not None or not causes:
        last = _unexplained(rest or case, runs, tried or {})
        found.append(dataclasses.replace(last, where=last.where or unknown_at))
    mended = tuple(i for i in runs if i in proven)
    return [dataclasses.replace(f, proven_runs=mended) for f in found]


def _with_lines(cause: Cause, acts: Mapping[str, ActsOfRanks]) -> Cause:
    """Returns it with a fix that has the lines at which its run changed a value."""
    if not cause.verified:
        return cause
    p = cause.proposal
    fix = with_lines(p.fix, p.fixes, acts)
    return dataclasses.replace(cause, proposal=replaced(p, fix=fix))


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
    evidence = p.evidence.copy()
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
    value = session.ask(job, SOLO)[0].value
    return value if isinstance(value, str) else None


def place_of_unknown(session: Session, spec: RunSpec, case: Case) -> str | None:
    """Returns the target's line for the link that breaks first."""
    if FAULT_RULE.detect(case):
        return None  # it says where a rank was
    link, module = unknown.link_of(case), None
    if link == "forward":
        module = next((m.name for m in case.diverging()), None)
    keys = unknown.place_keys(case) or _place_keys(link, module)
    return _found_at(session, spec, keys)


def _place_keys(link: str, module: str | None) -> tuple[str, ...]:
    """Returns what to look up for a finding's place, the best first."""
    if module is not None:
        return (f"module {module}", "forward")
    if link == "loss":
        return ("loss", "train_step", *_OF_SCRIPT)
    if link == "data":
        return ("train_step", "batch")
    if link in ("reduce", "backward"):
        return ("train_step", *_OF_SCRIPT, "wrap")
    return ("train_step", "optimizer") if link == "update" else ("forward",)


def modules(case: Case) -> list[ModuleRow]:
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


def _unexplained(case: Case, runs: list[int], tried: Mapping[str, float]) -> Finding:
    proposal = FAULT_RULE.detect(case)
    if proposal is not None:
        cause = Cause(proposal, where=proposal.evidence["where"])
        return _finding(cause, case, runs, sized=True)
    found = unknown.finding(case, runs, tried)
    return dataclasses.replace(found, evidence={"modules": modules(case)})


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
