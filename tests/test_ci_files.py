"""The files for CI services: they parse, and their scripts call the command rightly."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddpcheck.cli import arguments

ROOT = Path(__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
GITLAB = yaml.safe_load(
    (ROOT / "ci" / "ddpcheck.gitlab-ci.yml").read_text(encoding="utf-8")
)
STUB = """\
#!/bin/sh
last=
for a in "$@"; do
    printf "%s\\n" "$a"
    if [ "$last" = --json ] && [ -z "$STUB_SILENT" ]; then
        mkdir -p "$(dirname "$a")"
        touch "$a"
    fi
    last=$a
done
exit ${STUB_EXIT:-0}
"""
HOSTILE = 'a"; touch injected; echo "$(touch injected)'


def _run(script: str, folder: Path, variables: dict[str, str]) -> tuple[int, list[str]]:
    """Runs a script with a ddpcheck that prints its arguments and ends as asked."""
    stub = folder / "ddpcheck"
    stub.write_text(STUB, encoding="utf-8")
    stub.chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", **variables}
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],  # noqa: S607 (as the runner does)
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr
    assert not (folder / "injected").exists()
    return done.returncode, done.stdout.splitlines()


def _step(name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        s for s in ACTION["runs"]["steps"] if s["name"] == name
    )
    return found


def _check(folder: Path, **given: str) -> tuple[int, list[str]]:
    """Runs the action's check; inputs that are not given have their defaults."""
    inputs = {k: str(v.get("default", "")) for k, v in ACTION["inputs"].items()}
    inputs |= given
    step = _step("Check")
    variables = {
        key: re.sub(r"\$\{\{ inputs\.(\S+) \}\}", lambda m: inputs[m[1]], value)
        for key, value in step["env"].items()
    }
    variables |= {"GITHUB_OUTPUT": str(folder / "outputs")}
    variables |= {"STUB_EXIT": given.get("exit", "0")}
    variables |= {"STUB_SILENT": given.get("silent", "")}
    return _run(step["run"], folder, variables)


def test_action_is_composite_and_every_script_has_a_shell() -> None:
    assert ACTION["runs"]["using"] == "composite"
    scripts = [step for step in ACTION["runs"]["steps"] if "run" in step]
    assert [step["shell"] for step in scripts] == ["bash", "bash"]
    assert not any("${{" in step["run"] for step in scripts)


def test_expressions_of_the_action_name_what_there_is() -> None:
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"inputs\.(\w+)", text)) == set(ACTION["inputs"])
    steps = {step.get("id") for step in ACTION["runs"]["steps"]}
    assert set(re.findall(r"steps\.(\w+)\.", text)) <= steps


def test_options_of_the_action_are_those_of_the_command(tmp_path: Path) -> None:
    _, passed = _check(tmp_path, target="mymodel.py", baseline="known.json")
    args = arguments.parser().parse_args(passed)
    assert (args.target, args.baseline, args.github) == ("mymodel.py", "known.json", 1)
    assert args.report_dir == "ddpcheck-reports/mymodel.py"
    assert args.json == "ddpcheck-reports/mymodel.py/report.json"
    assert args.junit_xml == "ddpcheck-reports/mymodel.py/report.xml"
    assert args.sarif == "ddpcheck-reports/mymodel.py/report.sarif"


def test_further_options_are_one_per_line_and_none_is_read_by_the_shell(
    tmp_path: Path,
) -> None:
    options = f"--accept=norm/local-batch-stats=by design\n\n--dtype={HOSTILE}\n"
    _, passed = _check(tmp_path, target=HOSTILE, options=options)
    assert passed[0] == HOSTILE
    assert passed[-2:] == [
        "--accept=norm/local-batch-stats=by design",
        f"--dtype={HOSTILE}",
    ]


@pytest.mark.parametrize(
    ("line", "passed"),
    [
        ("--world-sizes 2", ["--world-sizes", "2"]),
        ("--world-sizes=2", ["--world-sizes=2"]),
        ("  --world-sizes \t 2,4  ", ["--world-sizes", "2,4"]),
        ("--no-fix ", ["--no-fix"]),
        ("-q", ["-q"]),
        (
            "--accept norm/local-batch-stats=by design, and  so",
            ["--accept", "norm/local-batch-stats=by design, and  so"],
        ),
        ("--accept=norm/a=--no fix", ["--accept=norm/a=--no fix"]),
        ("--dtype " + HOSTILE, ["--dtype", HOSTILE]),
        ("--train-step-fn *", ["--train-step-fn", "*"]),
        ("", []),
    ],
)
def test_option_of_the_action_and_its_value_may_be_parted_by_a_blank(
    line: str, passed: list[str], tmp_path: Path
) -> None:
    _, plain = _check(tmp_path, target="mymodel.py")
    options = f"{line}\n--steps 4\n"
    _, found = _check(tmp_path, target="mymodel.py", options=options)
    assert found[len(plain) :] == [*passed, "--steps", "4"]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("train.py", ["train.py"]),
        ("train.py  --lr 0.1\n-v", ["train.py", "--lr", "0.1", "-v"]),
        ("-m package.train 'a b' \"c d\"", ["-m", "package.train", "a b", "c d"]),
        ("train.py * $HOME `touch injected`", None),
    ],
)
def test_script_of_the_action_is_split_into_words_and_nothing_is_expanded(
    script: str, words: list[str] | None, tmp_path: Path
) -> None:
    _, plain = _check(tmp_path, target="a.py", reports="out", options="--steps 2")
    code, passed = _check(tmp_path, script=script, reports="out", options="--steps 2")
    assert code == 0
    assert passed == ["run", *plain[1:], *(words or script.split())]


def test_action_with_a_target_and_a_script_is_refused(tmp_path: Path) -> None:
    code, shown = _check(tmp_path, target="a.py", script="train.py")
    assert (code, shown) == (2, ["ddpcheck: give target or script, not both"])
    assert _outputs(tmp_path)["exit-code"] == "2"


def test_action_with_a_script_whose_quotes_do_not_match_is_refused(
    tmp_path: Path,
) -> None:
    code, shown = _check(tmp_path, script="train.py 'a b")
    assert (code, shown) == (2, ["ddpcheck: the quotes of script do not match"])
    assert _outputs(tmp_path)["exit-code"] == "2"


@pytest.mark.parametrize("code", ["0", "1", "2", "3", "130", "137"])
def test_action_fails_as_the_command_does(tmp_path: Path, code: str) -> None:
    assert _check(tmp_path, target="mymodel.py", exit=code)[0] == int(code)
    assert _outputs(tmp_path)["exit-code"] == code


def _outputs(folder: Path) -> dict[str, str]:
    lines = (folder / "outputs").read_text("utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize(
    ("given", "reports", "name"),
    [
        ({"target": "a.py"}, "ddpcheck-reports/a.py", "a.py"),
        (
            {"target": "models/a.py"},
            "ddpcheck-reports/models-a.py-2912356892",
            "models-a.py-2912356892",
        ),
        ({"target": "models-a.py"}, "ddpcheck-reports/models-a.py", "models-a.py"),
        ({"target": "a.py", "reports": "first"}, "first", "first"),
        ({"target": "a.py", "reports": "out/b"}, "out/b", "out-b-1714843534"),
    ],
)
def test_reports_and_artifact_of_the_action_follow_the_target(
    given: dict[str, str], reports: str, name: str, tmp_path: Path
) -> None:
    _, passed = _check(tmp_path, **given)
    outputs = _outputs(tmp_path)
    assert (outputs["reports"], outputs["name"]) == (reports, name)
    assert arguments.parser().parse_args(passed).report_dir == reports


def test_names_of_the_action_hold_nothing_that_an_artifact_refuses(
    tmp_path: Path,
) -> None:
    _check(tmp_path, target=HOSTILE + ":Net\n*?|<>")
    assert re.fullmatch(r"[A-Za-z0-9._-]+", _outputs(tmp_path)["name"])
    step = _step("Keep the reports")["with"]
    assert step["name"] == (
        "ddpcheck-${{ github.job }}-${{ strategy.job-index }}"
        "-${{ steps.check.outputs.name }}"
    )
    assert step["path"] == "${{ steps.check.outputs.reports }}"


@pytest.mark.parametrize("stale", [False, True])
def test_action_that_checked_nothing_does_not_pass(
    tmp_path: Path, *, stale: bool
) -> None:
    if stale:
        report = tmp_path / "ddpcheck-reports" / "mymodel.py" / "report.json"
        report.parent.mkdir(parents=True)
        report.touch()
        os.utime(report, (1.0, 1.0))
    code, _ = _check(tmp_path, target="mymodel.py", options="--help", silent="1")
    assert code == 3
    assert _outputs(tmp_path)["exit-code"] == "3"


def test_no_step_and_no_job_passes_over_a_failure() -> None:
    steps = ACTION["runs"]["steps"]
    assert not any("continue-on-error" in step for step in steps)
    assert [step.get("if") for step in steps if step.get("id") == "check"] == [None]
    assert "allow_failure" not in GITLAB[".ddpcheck"]
    assert "||" not in "".join(GITLAB[".ddpcheck"]["script"])


@pytest.mark.parametrize("code", ["0", "1", "2", "3", "130", "137"])
def test_gitlab_job_fails_as_the_command_does(tmp_path: Path, code: str) -> None:
    job = GITLAB[".ddpcheck"]
    (script,) = job["script"]
    variables = {**job["variables"], "DDPCHECK_TARGET": "a.py", "STUB_EXIT": code}
    assert _run(script, tmp_path, variables)[0] == int(code)


def test_artifacts_are_uploaded_whatever_the_verdict() -> None:
    assert _step("Keep the reports")["if"] == "always()"
    assert GITLAB[".ddpcheck"]["artifacts"]["when"] == "always"


@pytest.mark.parametrize("baseline", ["", "my baseline.json"])
def test_gitlab_job_calls_the_command(tmp_path: Path, baseline: str) -> None:
    job = GITLAB[".ddpcheck"]
    given = {"DDPCHECK_TARGET": "my model.py", "DDPCHECK_BASELINE": baseline}
    (script,) = job["script"]
    code, passed = _run(
        script, tmp_path, {**job["variables"], **given, "STUB_EXIT": "1"}
    )
    args = arguments.parser().parse_args(passed)
    assert (code, args.target, args.baseline or "") == (1, "my model.py", baseline)
    junit = job["artifacts"]["reports"]["junit"]
    assert args.junit_xml == junit.replace("$DDPCHECK_REPORTS", "ddpcheck-reports")
