"""A target that cannot be run: machine-readable outputs contain the reason."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any, NoReturn

import pytest

from ddpcheck.checking import checking
from ddpcheck.cli import commands
from ddpcheck.report import data as report
from ddpcheck.report.output import Outputs
from ddpcheck.run.session.session import CannotCheckError
from tests.report.render import sample

WHY = "the single-process run exited with code 7"


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a target whose single-process run dies, in the current folder."""

    def dies(*_: Any, **__: Any) -> NoReturn:
        raise CannotCheckError(WHY, "")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checking, "check_file", dies)
    path = Path("mymodel.py")
    path.write_text("model = batch = loss = None\n", encoding="utf-8")
    return path


def _check(target: Path, wanted: Outputs) -> None:
    with pytest.raises(CannotCheckError, match=WHY):
        commands.check(str(target), {}, {}, wanted, command="ddpcheck mymodel.py")


def test_every_file_that_was_asked_for_says_why(target: Path) -> None:
    Path("r.json").write_text(report.to_json(sample.equivalent()), "utf-8")
    _check(target, Outputs(json="r.json", junit_xml="r.xml", sarif="r.sarif"))
    plain = json.loads(Path("r.json").read_text("utf-8"))
    assert (plain["verdict"], plain["exit_code"], plain["runs"]) == (
        "not-checked",
        3,
        [],
    )
    assert plain["not_compared"] == [{"what": "everything", "why": WHY}]
    error = ET.fromstring(Path("r.xml").read_text("utf-8")).find(".//error")
    assert error is not None
    assert error.text == f"NOT CHECKED: nothing was compared\neverything: {WHY}"
    (run,) = json.loads(Path("r.sarif").read_text("utf-8"))["runs"]
    assert run["invocations"][0]["executionSuccessful"] is False
    assert not Path("reports").exists()


def test_json_on_standard_output_is_a_report(
    target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _check(target, Outputs(json="-"))
    assert json.loads(capsys.readouterr().out)["verdict"] == "not-checked"
