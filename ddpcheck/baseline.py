"""A report against an earlier one: only what is new fails.

A divergent run is known where the baseline has the same run divergent with the same
finding, or has the finding and not the run; and the finding names no file, module or
mode that the baseline's does not, where that names any; and none of its runs is off by
far more than it was: another place may have the same fault. Known findings become
accepted ones, so that every output shows them as such; what changed is said in the
report's warnings.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from ddpcheck import report as reports
from ddpcheck.errors import Problem, UsageError, cut
from ddpcheck.render import divergence, numbers, wording
from ddpcheck.report import EXIT_CODES, EXIT_SIGNAL, Finding, Report, Verdict

_FAR_MORE = 10.0  # times the excess of the baseline: no change of a number does that
_CAUSELESS = ("unknown", "sync/rank-raised", "sync/rank-died", "sync/rank-hung")


def load(path: str) -> Report:
    """Returns the report in a file.

    Raises:
        UsageError: baseline-file.
    """
    try:
        return reports.from_json(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    except ValueError as error:
        raise _unreadable(path, str(error)) from None


def apply(report: Report, known: Report, path: str) -> Report:
    """Returns the report with all that `known` has already as accepted findings.

    Args:
        report: of this check.
        known: the baseline.
        path: of the baseline, for the reasons.

    Raises:
        UsageError: baseline-target.
    """
    if report.target.name != known.target.name:
        raise _other_target(report, known, path)
    old = _divergent(known)
    every = dict.fromkeys(wording.run_labels(known))
    names = {_name(f) for f in known.findings}
    labels = wording.run_labels(report)

    def is_known(finding: Finding) -> bool:
        """Returns whether each of its runs, if made before, had it before."""
        if _name(finding) not in names or _new_places(finding, report, known):
            return False
        if _grown(finding, report, known):
            return False
        return all(
            _name(finding) in old[labels[i]]
            if labels[i] in old
            else labels[i] not in every
            for i in finding.runs
        )

    findings = tuple(
        dataclasses.replace(f, accepted=f"in the baseline {path}")
        if f.accepted is None and is_known(f)
        else f
        for f in report.findings
    )
    marked = dataclasses.replace(report, findings=findings)
    changes = _changes(marked, known)
    marked = dataclasses.replace(marked, warnings=(*changes, *report.warnings))
    return _judged(marked, known)


def _name(finding: Finding) -> str:
    """Returns what tells a finding from another: its slug, where that names a cause.

    Where it says what happened alone, the words are the finding; lines move.
    """
    if finding.slug not in _CAUSELESS:
        return finding.slug
    return f"{finding.slug}: {re.sub('[0-9]+', '', finding.summary)}"


def _new_places(finding: Finding, report: Report, known: Report) -> list[str]:
    """Returns where the finding is and the baseline's of the same name was not.

    Only of kinds that both name: a report of an older ddpcheck may name fewer.
    """
    now, before = _places(finding, report), dict[str, set[str]]()
    for other in known.findings:
        if _name(other) == _name(finding):
            for kind, named in _places(other, known).items():
                before.setdefault(kind, set()).update(named)
    return [
        f"{kind} {name}"
        for kind, named in now.items()
        if before.get(kind)
        for name in sorted(named - before[kind])
    ]


def _grown(finding: Finding, report: Report, known: Report) -> list[str]:
    """Returns, as words, which runs of the finding are off by far more than before."""
    labels = wording.run_labels(known)
    before = {x: divergence.worst_of_run(known, i) for i, x in enumerate(labels)}
    found = []
    for index in finding.runs:
        label = wording.run_labels(report)[index]
        now, then = divergence.worst_of_run(report, index), before.get(label)
        if now and then and now.excess > _FAR_MORE * max(then.excess, 1.0):
            sizes = numbers.excess(then.excess), numbers.excess(now.excess)
            found.append(f"excess {sizes[0]} became {sizes[1]} in {label}")
    return found


def _places(finding: Finding, report: Report) -> dict[str, set[str]]:
    """Returns the names of the places of a finding, by their kind; lines move."""
    path = (finding.where or "").rpartition(":")[0]
    listed = finding.evidence.get("modules")
    modules = listed if isinstance(listed, list | tuple) else ()
    return {
        "file": {Path(path).name} if path else set(),
        "module": {
            str(row.get("name"))
            for row in modules
            if isinstance(row, dict) and row.get("diverges")
        },
        "mode": {report.runs[i].mode for i in finding.runs if i < len(report.runs)},
    }


def _divergent(report: Report) -> dict[str, set[str]]:
    """Returns the findings of every divergent run, by the run's label."""
    labels = wording.run_labels(report)
    return {
        label: {_name(f) for f in report.findings if index in f.runs}
        for index, label in enumerate(labels)
        if report.runs[index].verdict == "divergent"
    }


def _judged(report: Report, known: Report) -> Report:
    """Returns the report with the verdict that what is left of it deserves."""
    if report.verdict != "divergent":
        return report
    old, labels = _divergent(known), wording.run_labels(report)
    for index, run in enumerate(report.runs):
        found = [f for f in report.findings if index in f.runs]
        is_open = any(f.accepted is None for f in found)
        unexplained = not found and labels[index] not in old
        if run.verdict == "divergent" and (is_open or unexplained):
            return report
    # Of one that was ended early the runs that are left may be new.
    verdict: Verdict = "not-checked" if report.ended else "equivalent"
    code = EXIT_CODES[verdict] if report.exit_code < EXIT_SIGNAL else report.exit_code
    return dataclasses.replace(report, verdict=verdict, exit_code=code)


def _changes(report: Report, known: Report) -> list[str]:
    """Returns what is new, and what is gone, since the baseline; a line each."""
    now, before = _divergent(report), _divergent(known)
    new = [_told(f, report, known) for f in report.findings if f.accepted is None]
    new += [f"{x}, cause unknown" for x in now if not now[x] and x not in before]
    kept = {f.slug for f in report.findings}
    gone = [f.slug for f in known.findings if f.slug not in kept]
    labels = wording.run_labels(report)
    is_run = dict.fromkeys(labels)
    gone += [f"the divergence of {x}" for x in before if x in is_run and x not in now]
    left = [x for x in wording.run_labels(known) if x not in is_run]
    parts = {
        "new since the baseline": new,
        "gone since the baseline": gone,
        "in the baseline, not run now": left,
    }
    return [f"{what}: {cut(items)}" for what, items in parts.items() if items]


def _told(finding: Finding, report: Report, known: Report) -> str:
    labels = wording.run_labels(report)
    places = _new_places(finding, report, known) + _grown(finding, report, known)
    where = f" ({cut(places)})" if places else ""
    return f"{finding.slug}{where} in {cut([labels[i] for i in finding.runs])}"


def overwritten(path: str, option: str) -> UsageError:
    """Returns the error for a check that would write over its baseline."""
    return UsageError(
        Problem(
            slug="baseline-overwritten",
            message=f"{option} would write over the baseline",
            expected="a baseline that no check writes to",
            found=f"{path} for both",
            fix=f"cp {path} baseline.json, and --baseline baseline.json",
        )
    )


def _unreadable(path: str, found: str) -> UsageError:
    return UsageError(
        Problem(
            slug="baseline-file",
            message=f"the baseline {path} cannot be read",
            expected="a report that --json wrote",
            found=found,
            fix="ddpcheck TARGET --json baseline.json, and --baseline baseline.json",
        )
    )


def _other_target(report: Report, known: Report, path: str) -> UsageError:
    return UsageError(
        Problem(
            slug="baseline-target",
            message=f"the baseline {path} is of another target",
            expected=f"a report on {report.target.name}",
            found=f"one on {known.target.name}",
            fix=f"ddpcheck {report.target.name} --json "
            f"{Path(report.target.name).stem}-baseline.json",
        )
    )
