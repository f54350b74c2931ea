"""SARIF against its JSON schema, and against what GitHub asks of an upload beyond it.

The schema's source and licence are in sarif-2.1.0.LICENSE.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ddpcheck.report.data import Report
from ddpcheck.report.pages import pages
from ddpcheck.report.render.sarif import to_sarif

from . import sample

SCHEMA = json.loads(Path(__file__).with_name("sarif-2.1.0.json").read_text("utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
EVERY = pytest.mark.parametrize("report", sample.ALL.values(), ids=sample.ALL)

# docs.github.com, "SARIF support for code scanning": longer texts are cut.
MAX_DESCRIPTION = 1024


def _log(report: Report) -> dict[str, Any]:
    found = pages.rule_pages({f.slug for f in report.findings})
    log: dict[str, Any] = json.loads(to_sarif(report, pages=found))
    return log


def _every_rule() -> Report:
    (finding,) = sample.divergent().findings
    findings = (replace(finding, slug=slug) for slug in pages.rule_slugs())
    return replace(sample.divergent(), findings=tuple(findings))


def _faults(log: dict[str, Any]) -> list[str]:
    """Returns what GitHub would refuse or show nothing of."""
    (run,) = log["runs"]
    faults = []
    rules = {}
    for rule in run["tool"]["driver"]["rules"]:
        rules[rule["id"]] = rule
        texts = [rule[key]["text"] for key in ("shortDescription", "fullDescription")]
        if not all(0 < len(text.strip()) <= MAX_DESCRIPTION for text in texts):
            faults.append(f"{rule['id']}: description")
        if not rule["help"]["text"].strip():
            faults.append(f"{rule['id']}: help")
    for result in run["results"]:
        place = result["locations"][0]["physicalLocation"]
        uri = place["artifactLocation"]["uri"]
        if result["ruleId"] not in rules:
            faults.append(f"{result['ruleId']}: no rule")
        if not result["message"]["text"].strip() or not result["partialFingerprints"]:
            faults.append(f"{result['ruleId']}: message or fingerprint")
        # Files of the repository have relative paths; line 1 is the first.
        if not uri or ":" in uri or uri[0] == "/" or place["region"]["startLine"] < 1:
            faults.append(f"{result['ruleId']}: {place}")
    return faults


@EVERY
def test_report_is_valid_by_the_schema(report: Report) -> None:
    VALIDATOR.validate(_log(report))


@EVERY
def test_report_has_what_github_asks_for(report: Report) -> None:
    assert _faults(_log(report)) == []


def test_every_rule_is_valid_and_has_what_github_asks_for() -> None:
    log = _log(_every_rule())
    assert len(log["runs"][0]["results"]) == len(pages.rule_slugs())
    VALIDATOR.validate(log)
    assert _faults(log) == []


def _broken(change: Callable[[dict[str, Any], dict[str, Any]], object]) -> Any:
    log = _log(sample.divergent())
    run = log["runs"][0]
    change(run, run["results"][0])
    return log


@pytest.mark.parametrize(
    "change",
    [
        lambda run, _: run.pop("tool"),
        lambda _, result: result.pop("message"),
        lambda _, result: result.update(level="fatal"),
        lambda _, result: result.update(rule_id="loss/sum-reduction"),
        lambda _, result: result["locations"][0].update(line=3),
    ],
    ids=["no-tool", "no-message", "level", "unknown-key", "unknown-place"],
)
def test_broken_log_would_be_seen_by_the_schema(
    change: Callable[[dict[str, Any], dict[str, Any]], object],
) -> None:
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(_broken(change))


@pytest.mark.parametrize(
    "change",
    [
        lambda run, _: run["tool"]["driver"]["rules"].clear(),
        lambda run, _: run["tool"]["driver"]["rules"][0]["help"].update(text=" "),
        lambda _, result: result["message"].update(text=""),
        lambda _, result: result["partialFingerprints"].clear(),
        lambda _, result: result["locations"][0]["physicalLocation"].update(
            artifactLocation={"uri": "file:///mymodel.py"}
        ),
    ],
    ids=["no-rule", "no-help", "no-message", "no-fingerprint", "absolute"],
)
def test_log_that_github_would_not_show_would_be_seen(
    change: Callable[[dict[str, Any], dict[str, Any]], object],
) -> None:
    assert len(_faults(_broken(change))) == 1
