"""The sentences that more than one renderer prints, each defined once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ddpcheck.errors import frames, raised
from ddpcheck.report.data import (
    RESUME,
    Control,
    Difference,
    Fault,
    Finding,
    Fix,
    Report,
    Run,
)
from ddpcheck.report.render import numbers, status

_MAX_NAMED_RUNS = 3
EXCESS_FORMULA = "excess = max |candidate - reference| / (atol + rtol * |reference|)"


def run_labels(report: Report) -> tuple[str, ...]:
    """Returns a short name for each run: "ddp W=2 bn=sync"."""
    return labels(report.runs)


def labels(runs: Sequence[Run]) -> tuple[str, ...]:
    """Returns a short name for each of a report's runs: "ddp W=2 bn=sync"."""
    named = zip(runs, _every_setting(runs), strict=True)
    return tuple(f"{r.mode} W={r.world_size} {rest}".rstrip() for r, rest in named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchecked:
    """Runs that were not checked for the same reason, or a run with failed ranks.

    `head`: "dp W=2, dp W=4 not checked"; `why` is "" for one with failed ranks alone.
    """

    indices: tuple[int, ...]
    head: str
    why: str


def unchecked(report: Report) -> list[Unchecked]:
    """Returns the runs that were not checked, by reason, and runs with failed ranks.

    A run with failed ranks is not grouped: the failures belong to it.
    """
    reasons: dict[tuple[str, int], list[int]] = {}
    for index, run in enumerate(report.runs):
        why = status.run_why(report, index)
        if why or run.faults:
            alone = index if run.faults else -1
            reasons.setdefault((why, alone), []).append(index)
    return [_unchecked(report, why, found) for (why, _), found in reasons.items()]


def _unchecked(report: Report, why: str, indices: list[int]) -> Unchecked:
    total = len(report.runs)
    head = named_runs(report, indices)
    head += " not checked" if why else " had ranks that failed"
    if len(indices) == total > 1:
        head = f"none of the {numbers.count(total)} runs was checked"
    return Unchecked(indices=tuple(indices), head=head, why=why)


def named_runs(report: Report, indices: Sequence[int]) -> str:
    """Returns the labels of runs, the first few of many."""
    labels = run_labels(report)
    named = [labels[index] for index in indices if index < len(labels)]
    if len(named) > _MAX_NAMED_RUNS:
        more = len(named) - _MAX_NAMED_RUNS
        named[_MAX_NAMED_RUNS:] = [f"and {numbers.count(more)} more"]
    return ", ".join(named)


def run_settings(report: Report) -> tuple[str, ...]:
    """Returns what sets each run apart but mode and world size: "bn=sync float32".

    Default settings are left out, and so is a dtype that all runs share.
    """
    return _every_setting(report.runs)


def _every_setting(runs: Sequence[Run]) -> tuple[str, ...]:
    several = len({run.dtype for run in runs}) > 1
    return tuple(_settings(run, with_dtype=several) for run in runs)


def _settings(run: Run, *, with_dtype: bool) -> str:
    listed = (
        ("reduce", run.reduce),
        ("bn", run.batch_norm),
        ("loss", run.loss),
        ("noise", run.noise),
    )
    parts = [f"{key}={value}" for key, value in listed if value not in ("", "asis")]
    return " ".join([*parts, run.dtype] if with_dtype else parts)


def agreement(run: Run) -> str:
    """Returns whether the ranks ended with the same tensors.

    "failed" where one did not end, and those that are left have nothing to differ in.
    """
    if not status.compared(run):
        return "not compared"
    if not run.ranks_agree:
        return "differ"
    return "failed" if run.faults else "agree"


def dtypes(report: Report) -> str:
    """Returns the dtypes of the runs, "no run" without any."""
    return ", ".join(dict.fromkeys(run.dtype for run in report.runs)) or "no run"


def tolerance(report: Report) -> str:
    """Returns the criterion and its origin: "rtol 1e-09 (float64 default)"."""
    found = report.tolerance
    return f"rtol {numbers.number(found.rtol)} ({found.origin})"


def model(report: Report) -> str:
    """Returns the model in words: "Net, 1,234 parameters in 12 tensors"."""
    target = report.target
    size = numbers.counted(target.num_parameters, "parameter")
    tensors = numbers.counted(target.num_tensors, "tensor")
    return ", ".join(filter(None, [target.model, f"{size} in {tensors}"]))


def verdict_line(report: Report) -> str:
    """Returns the verdict with the counts it rests on, in one line.

    Nothing compared reads "NOT CHECKED: nothing was compared", whatever the verdict.
    """
    word = status.WORDS[status.report_status(report)].upper()
    return f"{word}: {_counts(report)}"


def _counts(report: Report) -> str:
    compared = sum(map(status.compared, report.runs))
    mismatched = sum(map(status.mismatched, report.runs))
    state = status.report_status(report)
    if not compared and state == "not-checked":
        return "; ".join(filter(None, ("nothing was compared", report.ended)))
    if report.ended and state == "not-checked":
        return f"{report.ended}; {_comparisons(compared, mismatched)} so far"
    unchecked = _statuses(report).count("not-checked")
    parts = _judged(report, compared, mismatched)
    if state == "not-checked" and not mismatched:
        return f"{_runs(report)}; {_equal(report, compared)}"
    if state == "accepted":
        verb = "differs" if status.differing(report) == 1 else "differ"
        parts[0] += f" {verb} only by accepted causes"
    if mismatched and state == "equivalent" and not _accepted(report):
        equal = f"{numbers.count(compared - mismatched)} comparisons equal"
        differ = f"{numbers.count(mismatched)} of loss or outputs differ (not judged)"
        parts[1:] = [equal, differ]
    if unchecked and state != "not-checked":
        parts.append(f"{numbers.count(unchecked)} not checked")
    if accepted := _accepted(report):
        parts.append(f"{numbers.count(accepted)} accepted")
    if _is_by_noise_alone(report):
        parts.append("only in random numbers")
    if report.ended:
        parts.append(report.ended)
    return ", ".join(parts)


def _equal(report: Report, compared: int) -> str:
    """Returns what equal comparisons show of a check that is not complete."""
    if _statuses(report).count("not-checked") < len(report.runs):
        return f"{_comparisons(compared, 0)} in the others"
    verb = "proves" if compared == 1 else "prove"
    return f"{numbers.counted(compared, 'equal comparison')} {verb} nothing"


def _judged(report: Report, compared: int, mismatched: int) -> list[str]:
    """Returns how many runs have the report's verdict, and the evidence."""
    comparisons = [_comparisons(compared, mismatched)] if compared else []
    if _failed(report):
        return [f"{_runs(report)} failed on ranks", *comparisons]
    if status.report_status(report) == "divergent" and not compared:
        return [_runs(report), "ranks differ from each other"]
    return [_runs(report), _comparisons(compared, mismatched)]


def _runs(report: Report) -> str:
    """Returns how many runs have the report's status: "2 of 4 runs"."""
    statuses, state = _statuses(report), status.report_status(report)
    count = status.differing(report) if state == "accepted" else statuses.count(state)
    return f"{numbers.count(count)} of {numbers.counted(len(statuses), 'run')}"


def _failed(report: Report) -> bool:
    """Returns whether runs diverge by ranks that failed, and by no number."""
    found = [
        run
        for run, state in zip(report.runs, _statuses(report), strict=True)
        if state == "divergent"
    ]
    is_by_number = any(map(status.mismatched, found))
    return not is_by_number and any(run.faults for run in found)


def _comparisons(compared: int, mismatched: int) -> str:
    if not compared:
        return "nothing was compared"
    total = numbers.counted(compared, "comparison")
    if not mismatched:
        return f"{total} equal"
    verb = "differs" if mismatched == 1 else "differ"
    return f"{numbers.count(mismatched)} of {total} {verb}"


def _statuses(report: Report) -> list[status.Status]:
    return [status.run_status(report, index) for index in range(len(report.runs))]


def verdict_sentence(report: Report) -> str:
    """Returns the verdict as one full sentence, counts included."""
    if report.ended:
        return f"{ended(report)}. {_verdict_sentence(report)}"
    return _verdict_sentence(report)


def is_resume(report: Report) -> bool:
    """Returns whether the report is on a script that was started again."""
    return any(run.mode == RESUME for run in report.runs)


def _resumed(sentence: str) -> str:
    """Returns the sentence on a verdict about a script that was started again."""
    given = sentence.replace("Data-parallel training", "Training that was resumed")
    return given.replace("single-process training", "training that went on")


def reference(report: Report) -> str:
    """Returns the reference in words, with the micro-batches that it trains on."""
    if is_resume(report):
        return "the same ranks, not stopped"
    count = report.target.backwards
    if count < 2:  # noqa: PLR2004
        return "single process"
    return f"single process, {count} backward passes per update as in the step"


@dataclass(frozen=True, slots=True, kw_only=True)
class FactTable:
    """Numbers of a script that may follow the world size.

    `columns`: "W=1", "W=2". Each row has what it is, a text for each column, "-" where
    it is not known, and a sentence on what it does. `moved`: the rows whose numbers
    differ.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...], str], ...]
    moved: tuple[int, ...]


_EXPECTED = 8  # the world size that rows have a number for without a run


def facts(report: Report) -> FactTable:
    """Returns the facts of all world sizes, a row for each."""
    sizes = sorted({row.world_size for row in report.facts})
    every = [1, *sizes, *([] if _EXPECTED in sizes else [_EXPECTED])]
    found: dict[str, dict[int, float]] = {}
    effects: dict[str, dict[str, None]] = {}
    for row in report.facts:
        own = found.setdefault(row.what, {})
        own |= {1: row.single, row.world_size: row.ranks}
        if row.at_8 is not None:
            own.setdefault(_EXPECTED, row.at_8)
        effects.setdefault(row.what, {})[row.effect] = None
    moved = {row.what for row in report.facts if row.single != row.ranks}
    rows = tuple(
        (
            what,
            tuple(f"{own[size]:g}" if size in own else "-" for size in every),
            "; ".join(effects[what]),
        )
        for what, own in found.items()
    )
    return FactTable(
        columns=tuple(f"W={size}" for size in every),
        rows=rows,
        moved=tuple(i for i, (what, *_) in enumerate(rows) if what in moved),
    )


def parts(report: Report) -> list[str]:
    """Returns the three verdicts of a script, a line per world size.

    As "gradient equivalent, update equivalent, data divergent", with the reason for
    what was not checked.
    """
    sizes = list(dict.fromkeys(part.world_size for part in report.parts))
    lines = []
    for size in sizes:
        own = [part for part in report.parts if part.world_size == size]
        words = [f"{part.what} {status.WORDS[part.verdict]}" for part in own]
        label = f"W={size}: " if len(sizes) > 1 else ""
        lines.append(label + ", ".join(words))
    return lines


def scope(report: Report) -> str:
    """Returns what the verdict covers and what not, "" if that was not recorded."""
    scope = report.scope
    if not scope.checked:
        return ""
    left = f"; not {', '.join(scope.not_checked)}" if scope.not_checked else ""
    return f"{', '.join(scope.checked)}{left}"


def ended(report: Report) -> str:
    """Returns why a check is not complete, "" for one that is."""
    return f"Not complete: {report.ended}" if report.ended else ""


def _verdict_sentence(report: Report) -> str:
    compared = sum(map(status.compared, report.runs))
    mismatched = sum(map(status.mismatched, report.runs))
    state = status.report_status(report)
    if not compared and state == "not-checked":
        return "Nothing was compared, so nothing is known about the model."
    total = numbers.counted(compared, "tensor comparison")
    tensors = f"{numbers.count(mismatched)} of {total} above tolerance"
    if not compared:
        tensors = "nothing compared"
    sentence = _SENTENCES[state]
    if _failed(report):
        sentence = _FAILED if compared else _FAILED_AT_ONCE
    if is_resume(report):
        sentence = _resumed(sentence)
    first = sentence.format(runs=_runs(report), tensors=tensors)
    return " ".join([first, *_reservations(report)])


def _reservations(report: Report) -> list[str]:
    """Returns what weakens the verdict: findings accepted, runs not checked."""
    found = []
    if _is_by_noise_alone(report):
        found.append(
            "Only random numbers differ: with the same random numbers for the same "
            "samples the runs are equal."
        )
    if accepted := _accepted(report):
        verb = "is" if accepted == 1 else "are"
        found.append(f"{numbers.counted(accepted, 'finding')} {verb} accepted.")
    unchecked = _statuses(report).count("not-checked")
    if unchecked and status.report_status(report) != "not-checked":
        verb = "was" if unchecked == 1 else "were"
        found.append(f"{numbers.counted(unchecked, 'run')} {verb} not checked.")
    return found


def _is_by_noise_alone(report: Report) -> bool:
    """Returns whether training needs no change, as runs have proved."""
    found = [finding for finding in report.findings if finding.accepted is None]
    return bool(found) and all(
        finding.benign and finding.fix is not None and finding.fix.verified is True
        for finding in found
    )


def _accepted(report: Report) -> int:
    return sum(finding.accepted is not None for finding in report.findings)


_SENTENCES: dict[status.Status, str] = {
    "equivalent": "Data-parallel training equals single-process training in "
    "{runs}, with {tensors}.",
    "divergent": "Data-parallel training differs from single-process training "
    "in {runs}, with {tensors}.",
    "accepted": "Data-parallel training differs from single-process training "
    "only by accepted causes in {runs}, with {tensors}.",
    "not-checked": "No verdict: {runs} could not be checked. Compared: {tensors}.",
}


_FAILED = "Single-process training works, but ranks failed in {runs}, with {tensors}."
_FAILED_AT_ONCE = (
    "Single-process training works, but ranks failed in {runs} before anything was "
    "compared."
)


def fault_line(fault: Fault) -> str:
    """Returns one rank's failure in one line.

    An exception belongs to the rank's last step; a rank that died or hung had ended it.
    """
    when = "at" if fault.kind == "raised" else "after"
    step = "" if fault.step is None else f" {when} {step_name(fault.step)}"
    message = raised.without_source(fault.summary)
    where = frames.in_users(fault.stack) if fault.kind == "hung" else ""
    return f"rank {fault.rank} {fault.kind}{step}: {message}{where}"


def step_name(step: int) -> str:
    """Returns a step as people count them: "step 1" for 0; reports count from 0."""
    return f"step {step + 1}"


def place(difference: Difference) -> str:
    """Returns where a difference is: "step 1, rank 1"."""
    rank = "" if difference.rank is None else f", rank {difference.rank}"
    return f"{step_name(difference.step)}{rank}"


def size(difference: Difference) -> str:
    """Returns how large a difference is: "rel diff 0.333, excess 4e+13"."""
    parts = [
        f"rel diff {numbers.number(difference.rel_diff)}",
        f"excess {numbers.excess(difference.excess)}",
    ]
    if difference.ratio is not None:
        parts.append(f"ratio {numbers.number(difference.ratio)}")
    if difference.why is not None:
        parts.append(difference.why)
    return ", ".join(parts)


def safety(fix: Fix) -> str:
    """Returns what the fix does to single-process training."""
    if fix.safe:
        return "safe: single-process training is unchanged"
    return f"unsafe: {fix.changes or 'it also changes single-process training'}"


def proof(finding: Finding) -> str:
    """Returns what ran, and what it showed; "not confirmed" where nothing ran.

    "Verified" is used only for a file that ran.
    """
    fix = finding.fix
    if fix is None:
        return "no fix is known"
    if fix.verified is None:
        is_covered = fix.excess_before is not None and fix.excess_before <= 1
        why = (
            "the fix of another cause removes it, too"
            if is_covered
            else "nothing was run"
        )
        return f"not confirmed: {why}"
    ran, excesses = fix.intervention, _before_and_after(fix)
    if ran and excesses:
        ran = f"{ran} ({excesses})"
    line = ": ".join(filter(None, (proven(fix), ran or excesses)))
    others = _controls(finding.controls)
    return f"{line}; {others}" if others else line


def start(finding: Finding) -> str:
    """Returns where an unknown starts, "" where its facts say so: plain tensors."""
    found = finding.start
    if found is None:
        return ""
    is_plain = found.quantity in ("gradients", "weights", "buffers")
    return "" if is_plain and not found.group else found.text


def ruled_out(finding: Finding) -> list[str]:
    """Returns what is not the cause of an unknown, a sentence each."""
    return [f"{item.what}: {item.why}" for item in finding.ruled_out]


def ruled_out_in_brief(finding: Finding) -> str:
    """Returns what is not the cause of an unknown, in one line."""
    links = [item.what for item in finding.ruled_out if item.excess is None]
    leaving = [item.excess for item in finding.ruled_out if item.excess is not None]
    tried = ""
    if leaving:
        fixes = "the fix of a cause" if len(leaving) == 1 else "the fixes of {} causes"
        leave = "leaves" if len(leaving) == 1 else "leave"
        count = numbers.count(len(leaving))
        tried = f"{fixes.format(count)} {leave} {_least(leaving)}"
    return "; ".join(filter(None, (", ".join(links), tried)))


def beside_facts(finding: Finding) -> list[str]:
    """Returns where an unknown starts and what is not its cause, as sentences."""
    text = start(finding)
    found = [f"starts at: {text}"] if text else []
    return found + [f"not the cause: {line}" for line in ruled_out(finding)]


def proven(fix: Fix) -> str:
    """Returns in a few words what is known of a fix: "confirmed by intervention".

    A report of an earlier version does not name the intervention.
    """
    if fix.verified is None:
        return "not confirmed"
    if not fix.verified:
        return "the fix did not remove it"
    if fix.proof == "file":
        return "verified"
    if fix.proof == "located":
        return "located, no fix proven"
    return "confirmed by intervention"


def advice(fix: Fix) -> str:
    """Returns what to do, and what of that is unsafe."""
    return fix.text if fix.safe else f"{fix.text} ({safety(fix)})"


def advice_lines(fix: Fix) -> list[str]:
    """Returns what to do, a line, and its code under a title, if there is any."""
    shown = [f"{code_title(fix)}:", fix.code] if fix.code else []
    return [f"fix: {advice(fix)}", *shown]


def code_title(fix: Fix) -> str:
    """Returns the title of a fix's code."""
    if fix.proof == "file":
        return f"from {fix.file}, which ran"
    return "example, not run"


def _before_and_after(fix: Fix) -> str:
    parts = []
    if fix.excess_before is not None:
        parts.append(f"{numbers.excess(fix.excess_before)} before")
    if fix.excess_after is not None:
        parts.append(f"{numbers.excess(fix.excess_after)} after")
    return "excess " + ", ".join(parts) if parts else ""


def _controls(controls: tuple[Control, ...]) -> str:
    """Returns the results of other causes' fixes, run as controls."""
    removing = [control.slug for control in controls if control.excess_after <= 1]
    leaving = [c.excess_after for c in controls if not c.excess_after <= 1]
    parts = []
    if removing:
        parts.append(f"the fix of {' or '.join(removing)} removes it, too")
    if len(leaving) == 1:
        parts.append(f"the fix of another cause leaves {_least(leaving)}")
    elif leaving:
        count = numbers.count(len(leaving))
        parts.append(f"the fixes of {count} other causes leave {_least(leaving)}")
    return f"tried instead, {', '.join(parts)}" if parts else ""


def _least(values: list[float]) -> str:
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return "nan"
    least = numbers.at_least(min(known))
    return least if len(values) == 1 else f"{least} or more"
