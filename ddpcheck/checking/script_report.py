"""The report of a script: its runs as a target, and what the recordings add.

Ranks that failed while they were recorded, the samples that they drew, and what is
right in a script although its runs differ.
"""

from __future__ import annotations

import dataclasses

from ddpcheck.checking import script_reproduce, script_verdicts, script_waits
from ddpcheck.checking.script_endings import Endings
from ddpcheck.checking.script_recordings import Recordings
from ddpcheck.diagnose import script_data
from ddpcheck.diagnose.facts import rank_table
from ddpcheck.errors import frames
from ddpcheck.report.data import (
    DATA,
    EXIT_CODES,
    EXIT_SIGNAL,
    Fault,
    Finding,
    Report,
    Run,
    Verdict,
    in_order,
)
from ddpcheck.report.render import numbers
from ddpcheck.run.session import acceptance
from ddpcheck.target.options import Options
from ddpcheck.target.script import Script

_SLUGS = {"raised": "sync/rank-raised", "died": "sync/rank-died"}


def with_more(
    report: Report,
    script: Script,
    recordings: Recordings,
    endings: Endings,
    options: Options,
) -> Report:
    """Adds to the report what the recordings show by themselves.

    A run for ranks that failed while the script trained on its own, and one for the
    samples that they drew.
    """
    runs, new = list(report.runs), list[Finding]()
    ranks = [outcome.progress for outcome in recordings.ranks]
    single, faults = recordings.single.progress, endings.faults()
    in_data = script_data.findings(ranks, single, finished=not faults)
    left_out = script_data.not_compared(ranks, single)
    if in_data:
        new = [dataclasses.replace(f, runs=(len(runs),)) for f in in_data]
        runs.append(_data_run(recordings, report))
    if faults:
        report, new = _with_faults(report, recordings, faults, len(runs), new)
        runs.append(_failed_run(recordings, faults, report))
    for late in _of_all_updates(report, recordings, endings):
        new.append(dataclasses.replace(late, runs=(len(runs),)))
        runs.append(_failed_run(recordings, [], report))
    table = script_data.table(ranks, single)
    others = script_verdicts.sound(
        report.findings,
        report.runs,
        table,
        by_passes=script_data.follows_passes(ranks, single)
        and script_data.shares_passes(table),
    )
    accepted = in_order([*acceptance.accept(runs, new, options.accept), *others])
    verdict = acceptance.verdict(runs, accepted)
    ended = report.ended or endings.slow()
    if ended and verdict == "equivalent":
        verdict = "not-checked"
    compared = next(iter(report.runs), None)
    made = dataclasses.replace(
        report,
        verdict=verdict,
        ended=ended,
        exit_code=_exit_code(report, verdict),
        runs=tuple(runs),
        findings=tuple(accepted),
        facts=table,
        parts=script_verdicts.parts(
            compared, report.findings, in_data, left_out, len(ranks)
        ),
        not_compared=tuple(
            dict.fromkeys((*endings.left_out(), *report.not_compared, *left_out))
        ),
        warnings=(*endings.warnings(), *report.warnings),
    )
    return dataclasses.replace(
        made, reproduce=script_reproduce.text(script, made, options)
    )


def _exit_code(report: Report, verdict: Verdict) -> int:
    """Returns the code of the verdict, or of the signal that ended the check."""
    is_of_signal = report.exit_code >= EXIT_SIGNAL
    return report.exit_code if is_of_signal else EXIT_CODES[verdict]


_UNEVEN = "data/uneven-batches"


def _with_faults(
    report: Report,
    recordings: Recordings,
    faults: list[Fault],
    run: int,
    new: list[Finding],
) -> tuple[Report, list[Finding]]:
    """Returns the report and the new findings, with what made ranks fail in a run."""
    explained = _explained(report, run, faults)
    if explained is not None:
        return dataclasses.replace(report, findings=explained), new
    known = [finding.slug for finding in new]
    # Ranks that wait for batches of others fail by it, and no rank does otherwise.
    if _UNEVEN not in known or not all(map(_is_for_others, faults)):
        why = script_waits.cause(recordings.ranks, faults)
        return report, [_of_faults(faults, len(recordings.ranks), run, why), *new]
    place = known.index(_UNEVEN)
    covers = dataclasses.replace(new[place], runs=(*new[place].runs, run))
    return report, [*new[:place], covers, *new[place + 1 :]]


def _of_all_updates(
    report: Report, recordings: Recordings, endings: Endings
) -> list[Finding]:
    """Returns what the updates show that come after the checked steps."""
    ranks = [outcome.progress for outcome in recordings.ranks]
    found = []
    if endings.are_regular:
        found.append(script_data.unfinished(ranks, recordings.single.progress))
    if all(run.ranks_agree for run in report.runs) and not endings.faults():
        found.append(script_data.apart(ranks))
    return [finding for finding in found if finding is not None]


def _data_run(recordings: Recordings, report: Report) -> Run:
    """Returns the run that stands for the samples which the ranks drew wrongly."""
    return Run(
        mode=DATA,
        world_size=len(recordings.ranks),
        dtype=report.runs[0].dtype if report.runs else "float32",
        verdict="divergent",
        seconds=recordings.seconds,
    )


def _failed_run(recordings: Recordings, faults: list[Fault], report: Report) -> Run:
    """Returns the run of the script's own training, in which ranks failed."""
    return Run(
        mode="script",
        world_size=len(recordings.ranks),
        dtype=report.runs[0].dtype if report.runs else "float32",
        verdict="divergent",
        faults=tuple(faults),
        seconds=recordings.seconds,
    )


def _is_for_others(fault: Fault) -> bool:
    """Returns whether a rank waits for others, or torch raises since they are gone."""
    place = frames.innermost(fault.stack)
    is_torchs = place is not None and (place.is_distributed or place.is_exchange)
    return fault.kind == "hung" or (fault.kind == "raised" and is_torchs)


def _explained(
    report: Report, run: int, faults: list[Fault]
) -> tuple[Finding, ...] | None:
    """Returns the findings where one of them is why ranks fail, also in this run.

    None where none is, or where a rank fails otherwise than in the runs of the finding.
    """
    found = list(report.findings)
    own = acceptance.failures([one for one in faults if not _is_for_others(one)])
    for index, one in enumerate(found):
        alike = [f for i in one.runs for f in report.runs[i].faults]
        is_known = one.slug in acceptance.ABOUT_FAILED_RANKS
        is_known &= own <= acceptance.failures(alike)
        if is_known and not one.slug.startswith("sync/rank-"):
            found[index] = dataclasses.replace(one, runs=(*one.runs, run))
            return tuple(found)
    return None


def _of_faults(
    faults: list[Fault], world_size: int, run: int, why: script_waits.Cause | None
) -> Finding:
    # A rank that waits for another one is not the cause.
    first = min(
        faults,
        key=lambda fault: (
            list(_HOW).index(fault.kind),
            frames.exchanges(fault.stack),
            fault.rank,
        ),
    )
    lines = [_fault_line(fault) for fault in faults]
    where = rank_table.where(frames.users(first.stack))
    if why is not None:
        return Finding(
            slug=why.slug,
            link=why.link,
            runs=(run,),
            summary=why.summary,
            facts=tuple(lines),
            where=where,
            fix=why.fix,
        )
    return Finding(
        slug=_SLUGS.get(first.kind, "sync/rank-hung"),
        link="sync",
        runs=(run,),
        summary=f"on {world_size} ranks the script does not go on where a single "
        f"process does: rank {first.rank} {_HOW[first.kind]}",
        facts=tuple(lines),
        where=where,
    )


def _fault_line(fault: Fault) -> str:
    done = fault.step or 0
    if fault.kind != "raised" and fault.step is not None:
        done += 1  # it had ended that step
    where = frames.in_users(fault.stack)
    updates = numbers.counted(done, "update")
    return f"rank {fault.rank}, after {updates}: {fault.summary}{where}"


_HOW = {"raised": "raises", "died": "dies", "hung": "hangs"}
