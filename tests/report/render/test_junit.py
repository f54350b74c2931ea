"""JUnit XML: one test case per run, and never an empty success."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from ddpcheck.report.data import Report
from ddpcheck.report.render.junit import to_junit

from . import sample

EVERY = pytest.mark.parametrize("report", sample.ALL.values(), ids=sample.ALL)


def _suite(report: Report) -> ET.Element:
    suite = ET.fromstring(to_junit(report)).find("testsuite")
    assert suite is not None
    return suite


@EVERY
def test_junit_parses_and_counts_its_cases(report: Report) -> None:
    suite = _suite(report)
    assert int(suite.get("tests", "")) == len(suite.findall("testcase"))
    assert int(suite.get("failures", "")) == len(suite.findall("testcase/failure"))
    to_junit(report).encode("utf-8")


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("divergent", ("3", "2", "0", "0")),
        ("equivalent", ("12", "0", "0", "0")),
        ("not-checked", ("1", "0", "1", "0")),
        ("nothing-compared", ("1", "0", "1", "0")),
        ("without-runs", ("1", "0", "1", "0")),
        ("accepted", ("2", "0", "0", "1")),
    ],
)
def test_junit_counts_by_status(name: str, counts: tuple[str, ...]) -> None:
    suite = _suite(sample.ALL[name])
    keys = ("tests", "failures", "errors", "skipped")
    assert tuple(suite.get(key) for key in keys) == counts


def test_junit_of_a_verdict_no_run_explains_adds_a_case() -> None:
    report = replace(sample.divergent(), runs=(sample.equal_run(),), findings=())
    cases = _suite(report).findall("testcase")
    assert [case.get("name") for case in cases] == ["dp W=2", "verdict"]
    assert cases[1].find("failure") is not None


def test_junit_failure_shows_cause_and_proof() -> None:
    failure = _suite(sample.divergent()).find("testcase/failure")
    assert failure is not None
    message = "30 of 87 comparisons differ: loss/local-normalizer"
    assert failure.get("message") == message
    assert (failure.text or "").splitlines()[0] == (
        "worst: head.weight, step 1, rank 0, rel diff 0.333, excess 4e+13, ratio 1.33"
    )
    assert (failure.text or "").splitlines()[-1] == (
        "confirmed by intervention: with each rank's loss weighted by its share of the "
        "count the runs are equal (excess 4e+13 before, 0.0213 after); tried instead, "
        "the fixes of 3 other causes leave 9.99e+12 or more"
    )


def test_junit_error_shows_each_rank() -> None:
    error = _suite(sample.not_checked()).find("testcase/error")
    assert error is not None
    assert (error.text or "").splitlines() == [
        "rank 1 died after step 1: killed by SIGABRT",
        "rank 3 hung: no answer for 60 s, in all_reduce, at mymodel.py:41 in loss",
        'File "mymodel.py", line 41, in loss',
        "    dist.all_reduce(n)",
        "terminate called without an active exception",
    ]
