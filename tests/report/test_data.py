"""The order of findings: one for all outputs of a report."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from ddpcheck.report.data import Finding, Fix, in_order

FOUND = Finding(slug="a/found", link="data", runs=(0,), summary="", fix=Fix(text="do"))
PROVEN = replace(
    FOUND, slug="a/proven", fix=Fix(text="do", verified=True, proof="intervention")
)
BENIGN = replace(PROVEN, slug="a/benign", benign=True)
ACCEPTED = replace(PROVEN, slug="a/accepted", accepted="by design")


@pytest.mark.parametrize(
    "findings", list(itertools.permutations((PROVEN, FOUND, BENIGN, ACCEPTED)))
)
def test_proven_findings_come_first_and_accepted_ones_last(
    findings: tuple[Finding, ...],
) -> None:
    assert in_order(findings) == [PROVEN, FOUND, BENIGN, ACCEPTED]


def test_findings_of_one_kind_keep_their_order() -> None:
    unknown = replace(FOUND, slug="unknown", fix=None)
    assert in_order([FOUND, unknown]) == [FOUND, unknown]
    assert in_order([unknown, FOUND]) == [unknown, FOUND]


def test_noise_is_behind_what_changes_the_mean_of_the_gradient() -> None:
    noise = replace(PROVEN, slug="rng/same-stream-all-ranks")
    assert in_order([noise, PROVEN]) == [PROVEN, noise]
    assert in_order([FOUND, noise]) == [noise, FOUND]  # which no run has proven
