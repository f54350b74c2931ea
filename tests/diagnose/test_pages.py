"""Every rule has a whole page."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.checking import sharded
from ddpcheck.diagnose import rules
from ddpcheck.diagnose.registry import (
    DATA_PARALLEL_FAULT_RULES,
    DATA_PARALLEL_RULES,
    FAULT_RULE,
    RULES,
    SERVER_RULES,
)
from ddpcheck.diagnose.script_data import judge, resumed
from ddpcheck.report.pages import pages

UNWRITTEN = "something is left to be written"
_MAX_CODE = 15  # lines
_MAX_WIDTH = 88  # a page is read on terminals
DETECTORS = sorted(Path(rules.__path__[0]).glob("*.py"))
_OF_DATA_PARALLEL = (*DATA_PARALLEL_RULES, *DATA_PARALLEL_FAULT_RULES)
OF_SCRIPTS = (*judge.SLUGS, *resumed.SLUGS, *sharded.SLUGS)
SLUGS = list(
    dict.fromkeys(
        [*(rule.SLUG for rule in RULES), *FAULT_RULE.SLUGS]
        + [rule.SLUG for rule in SERVER_RULES]
        + [rule.SLUG for rule in _OF_DATA_PARALLEL]
        + [*OF_SCRIPTS]
    )
)


def is_unwritten(path: Path) -> bool:
    """Returns whether a part of a detector is left to be written."""
    return "TODO" in path.read_text(encoding="utf-8")


def faults(text: str) -> list[str]:
    """Returns what is wrong with a rule's page."""
    parts = pages.sections(text)
    found = [UNWRITTEN] if "TODO" in text else []
    if tuple(parts) != pages.HEADINGS:
        found.append(f"headings are {list(parts)}")
    found += [f"{heading} is empty" for heading, part in parts.items() if not part]
    example = parts.get("Example", "")
    lines = [line for line in example.splitlines() if line]
    if len(lines) > _MAX_CODE:
        found.append(f"the example has {len(lines)} lines")
    if any(not line.startswith("    ") for line in lines):
        found.append("the example is not indented")
    found += [
        f"too wide: {line}" for line in text.splitlines() if len(line) > _MAX_WIDTH
    ]
    references = parts.get("References", "").splitlines()
    if any(not r.startswith("https://") and r != "-" for r in references):
        found.append("a reference is no address")
    return found


def test_registry_and_files_are_the_same_rules() -> None:
    assert sorted(SLUGS) == list(pages.rule_slugs())
    every = {id(rule) for rule in (*RULES, *SERVER_RULES, *_OF_DATA_PARALLEL)}
    assert len(every) + len(FAULT_RULE.SLUGS) + len(OF_SCRIPTS) == len(SLUGS)


@pytest.mark.parametrize("path", DETECTORS, ids=lambda path: path.stem)
def test_no_detector_is_left_to_be_written(path: Path) -> None:
    assert not is_unwritten(path)


@pytest.mark.parametrize("slug", SLUGS)
def test_page_is_whole(slug: str) -> None:
    assert faults(pages.page(slug)) == []


def test_faults_of_a_page_are_seen() -> None:
    text = pages.page("loss/sum-reduction")
    assert faults(text.replace("\nFix\n", "\nfix\n"))
    assert faults(text.replace("https://", "see "))
    assert faults(text + "TODO") != faults(text)
    assert faults(text.replace("\nExample\n", "\nExample\n" + "    x = 1\n" * 10))
    assert faults(text.replace("    import torch\n", "import torch\n"))
    assert faults(
        text.replace("Why it happens\n", "Why it happens\n" + "x" * 89 + "\n")
    )


def test_fix_is_added_to_the_example() -> None:
    broken, fixed = pages.targets("loss/sum-reduction")
    assert broken.splitlines()[-1] == 'loss = nn.CrossEntropyLoss(reduction="sum")'
    assert fixed == broken + "\nloss = nn.CrossEntropyLoss()\n"
