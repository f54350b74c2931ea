"""Compares a report with an earlier one: only new findings fail.

A finding of a divergent run is known where the baseline has the same run, of the same
settings, divergent with the same finding; and it names no file, module or loader that
the baseline's does not, where that names any; and the run is no worse than it was: no
tensor differs that did not, none is off by far more, no rank fails that did not, what
was finite is, and ranks that agreed do, and the samples that a finding on the data
concerns are no more than twice the part of a pass. Known findings become accepted ones,
so that every output shows them as such; the report's warnings list what changed.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from ddpcheck.errors.problem import UsageError, cut, usage_error
from ddpcheck.report import data as reports
from ddpcheck.report.data import (
    EXIT_CODES,
    EXIT_SIGNAL,
    Finding,
    Report,
    Run,
    Verdict,
    in_order,
)
from ddpcheck.report.render import divergence, numbers, wording
from ddpcheck.run.session import acceptance

_FAR_MORE = 10.0  # times the excess of the baseline: no change of a number does that
_MORE_SAMPLES = 2.0  # times the part of a pass: what is drawn at random changes less
_ANOTHER = "another finding than in the baseline"
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
    """Returns the report; the findings that `known` already has are accepted.

    Args:
        report: of this check.
        known: the baseline.
        path: of the baseline, for the reasons.

    Raises:
        UsageError: baseline-target.
    """
    if report.target.name != known.target.name:
        raise _other_target(report, known, path)
    report = _with_broken_off(report, known)
    before = _before(report, known)
    found = acceptance.marked(
        report.runs,
        report.findings,
        lambda *_: f"in the baseline {path}",
        lambda finding, index: _is_new(
            finding, index, before.get(index), report, known
        ),
    )
    marked = dataclasses.replace(report, findings=tuple(in_order(found)))
    changes = _changes(marked, known)
    marked = dataclasses.replace(marked, warnings=(*changes, *report.warnings))
    return _judged(marked, known)


def _settings(report: Report, run: Run) -> tuple[object, ...]:
    """Returns the settings that identify a run in the baseline."""
    chosen = run.reduce, run.batch_norm, run.loss, run.noise, run.dtype
    return run.mode, run.world_size, *chosen, report.target.steps


def _before(report: Report, known: Report) -> dict[int, int]:
    """Returns the number in the baseline of each run that it has."""
    there = {_settings(known, run): i for i, run in enumerate(known.runs)}
    numbered = ((i, _settings(report, run)) for i, run in enumerate(report.runs))
    return {i: there[settings] for i, settings in numbered if settings in there}


def _is_new(
    finding: Finding, index: int, then: int | None, report: Report, known: Report
) -> str:
    """Returns what is new in a run's finding, "" if the baseline has the same."""
    if then is None:
        like = [r for r in known.runs if _is_named_alike(r, report.runs[index])]
        other = " with these settings" if like else ""
        return f"the baseline has no such run{other}"
    if known.runs[then].verdict != "divergent":
        return f"{known.runs[then].verdict} in the baseline"
    if _name(finding) not in _names(known, then):
        return _ANOTHER
    return "; ".join(
        [
            *_new_places(finding, known),
            *acceptance.worse(report.runs[index], known.runs[then]),
            *_grown(index, then, report, known),
            *_more_samples(finding, known, then),
        ]
    )


def _is_named_alike(run: Run, other: Run) -> bool:
    return (run.mode, run.world_size) == (other.mode, other.world_size)


def _names(report: Report, index: int) -> set[str]:
    return {_name(f) for f in report.findings if index in f.runs}


def _with_broken_off(report: Report, known: Report) -> Report:
    """Returns the report; with runs that fail now, and did not, as divergent ones.

    DataParallel may refuse a target, and then nothing is checked; where it did not,
    that is a change.
    """
    runs, findings = list(report.runs), list(report.findings)
    for index, then in _before(report, known).items():
        run, was = runs[index], known.runs[then]
        if run.verdict != "not-checked" or was.verdict == "not-checked":
            continue
        if run.faults:
            runs[index] = dataclasses.replace(run, verdict="divergent", why="")
            findings.append(
                Finding(
                    slug="unknown",
                    link="forward",
                    runs=(index,),
                    summary="the cause is unknown; replicas fail that did not in the "
                    "baseline",
                    facts=(acceptance.failed(run),),
                )
            )
    if runs == list(report.runs):
        return report
    changed = dataclasses.replace(report, runs=tuple(runs), findings=tuple(findings))
    return _with_verdict(changed, "divergent")


def _name(finding: Finding) -> str:
    """Returns the identity of a finding: its slug, if that names a cause.

    If the slug only names a symptom, the text counts, without line numbers.
    """
    if finding.slug not in _CAUSELESS:
        return finding.slug
    return f"{finding.slug}: {re.sub('[0-9]+', '', finding.summary)}"


def _new_places(finding: Finding, known: Report) -> list[str]:
    """Returns where the finding is and the baseline's of the same name was not.

    Only of kinds that both name: a report of an older ddpcheck may name fewer.
    """
    now, before = _places(finding), dict[str, set[str]]()
    for other in known.findings:
        if _name(other) == _name(finding):
            for kind, named in _places(other).items():
                before.setdefault(kind, set()).update(named)
    return [
        f"{kind} {name}"
        for kind, named in now.items()
        if before.get(kind)
        for name in sorted(named - before[kind])
    ]


def _grown(index: int, then: int, report: Report, known: Report) -> list[str]:
    """Returns, as words, that a run is off by far more than it was.

    An excess counts tolerances: both are counted in those of this check.
    """
    now = divergence.worst_of_run(report, index)
    was = divergence.worst_of_run(known, then)
    if now is None or was is None:
        return []
    rtol, earlier = report.runs[index].rtol, known.runs[then].rtol
    before = was.excess * (earlier / rtol if rtol and earlier else 1.0)
    if now.excess <= _FAR_MORE * max(before, 1.0):
        return []
    sizes = numbers.excess(before), numbers.excess(now.excess)
    return [f"excess {sizes[0]} became {sizes[1]}"]


def _more_samples(finding: Finding, known: Report, then: int) -> list[str]:
    """Returns, as words, that a finding concerns far more samples of a pass."""
    now = _share(finding)
    like = [f for f in known.findings if then in f.runs and _name(f) == _name(finding)]
    before = [share for one in like if (share := _share(one))]
    if not now or not before or now <= _MORE_SAMPLES * max(before):
        return []
    return [f"{max(before):.1%} of the samples became {now:.1%}"]


def _share(finding: Finding) -> float:
    """Returns how much of a pass a finding on the ranks' samples concerns."""
    evidence = finding.evidence
    counts = [evidence.get(key) for key in ("repeated", "missing", "of_pass")]
    repeated, missing, of_pass = (n if isinstance(n, int) else 0 for n in counts)
    return (repeated + missing) / of_pass if of_pass else 0.0


def _places(finding: Finding) -> dict[str, set[str]]:
    """Returns the names of the places of a finding, by their kind; lines move."""
    path = (finding.where or "").rpartition(":")[0]
    listed = finding.evidence.get("modules")
    modules = listed if isinstance(listed, list | tuple) else ()
    loader = finding.evidence.get("loader")
    return {
        "file": {Path(path).name} if path else set(),
        "module": {
            str(row.get("name"))
            for row in modules
            if isinstance(row, dict) and row.get("diverges")
        },
        "loader": set() if loader is None else {str(loader)},
    }


def _divergent(report: Report) -> set[int]:
    return {i for i, run in enumerate(report.runs) if run.verdict == "divergent"}


def _judged(report: Report, known: Report) -> Report:
    """Returns the report with the verdict of the runs that the baseline lacks."""
    if report.verdict != "divergent":
        return report
    new = _unexplained(report, known)
    verdict = acceptance.verdict(report.runs, report.findings, lambda i: i not in new)
    if report.ended and verdict == "equivalent":
        verdict = "not-checked"  # the runs that are left may be new
    return _with_verdict(report, verdict)


def _with_verdict(report: Report, verdict: Verdict) -> Report:
    code = EXIT_CODES[verdict] if report.exit_code < EXIT_SIGNAL else report.exit_code
    return dataclasses.replace(report, verdict=verdict, exit_code=code)


def _unexplained(report: Report, known: Report) -> dict[int, str]:
    """Returns the divergent runs without a finding that are new, and what is."""
    before, found = _before(report, known), {}
    for index, run in enumerate(report.runs):
        if run.verdict != "divergent" or _names(report, index):
            continue
        then = before.get(index)
        if then is None or known.runs[then].verdict != "divergent":
            found[index] = "cause unknown"
            continue
        worse = acceptance.worse(run, known.runs[then])
        if worse := worse + _grown(index, then, report, known):
            found[index] = "; ".join(worse)
    return found


def _changes(report: Report, known: Report) -> list[str]:
    """Returns what is new, and what is gone, since the baseline; a line each."""
    labels, old = wording.run_labels(report), wording.run_labels(known)
    there, before = _before(report, known), _divergent(known)
    new = [_told(f, report, known) for f in report.findings if f.accepted is None]
    new += [f"{labels[i]}, {why}" for i, why in _unexplained(report, known).items()]
    now = {f.slug for f in report.findings}
    gone = [f.slug for f in known.findings if f.slug not in now]
    gone += [
        f"the divergence of {old[then]}"
        for i, then in there.items()
        if then in before and report.runs[i].verdict == "equivalent"
    ]
    made = set(there.values())
    left = [label for i, label in enumerate(old) if i not in made]
    unchecked = [
        labels[i]
        for i, then in there.items()
        if report.runs[i].verdict == "not-checked" != known.runs[then].verdict
    ]
    parts = {
        "new since the baseline": new,
        "gone since the baseline": gone,
        "in the baseline, not run now": left,
        "in the baseline, not checked now": unchecked,
    }
    return [f"{what}: {cut(items)}" for what, items in parts.items() if items]


def _told(finding: Finding, report: Report, known: Report) -> str:
    labels, before = wording.run_labels(report), _before(report, known)
    found = [_is_new(finding, i, before.get(i), report, known) for i in finding.runs]
    why = list(
        dict.fromkeys(reason for reason in found if reason not in ("", _ANOTHER))
    )
    where = f" ({cut(why)})" if why else ""
    return f"{finding.slug}{where} in {cut([labels[i] for i in finding.runs])}"


def overwritten(path: str, option: str) -> UsageError:
    """Returns the error for a check that would write over its baseline."""
    return usage_error(
        slug="baseline-overwritten",
        message=f"{option} would write over the baseline",
        expected="a baseline that no check writes to",
        found=f"{path} for both",
        fix=f"cp {path} baseline.json, and --baseline baseline.json",
    )


def _unreadable(path: str, found: str) -> UsageError:
    return usage_error(
        slug="baseline-file",
        message=f"the baseline {path} cannot be read",
        expected="a report that --json wrote",
        found=found,
        fix="ddpcheck TARGET --json baseline.json, and --baseline baseline.json",
    )


def _other_target(report: Report, known: Report, path: str) -> UsageError:
    return usage_error(
        slug="baseline-target",
        message=f"the baseline {path} is for another target",
        expected=f"a report on {report.target.name}",
        found=f"one on {known.target.name}",
        fix=f"ddpcheck {report.target.name} --json "
        f"{Path(report.target.name).stem}-baseline.json",
    )
