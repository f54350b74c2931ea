"""`ddpcheck run`: which arguments are ours, and what is refused before any process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ddpcheck.cli import run_command
from ddpcheck.cli.main import main


@pytest.mark.parametrize(
    ("given", "own", "rest"),
    [
        (["train.py"], [], ["train.py"]),
        (["--steps", "2", "train.py", "--steps", "9"], ["--steps", "2"], None),
        (["--no-fix", "train.py"], ["--no-fix"], ["train.py"]),
        (["--json=a.json", "-m", "package.train"], ["--json=a.json"], None),
        (["-q", "train.py", "-q"], ["-q"], ["train.py", "-q"]),
        (["--steps", "2"], ["--steps", "2"], []),
    ],
)
def test_arguments_after_the_script_are_its_own(
    given: list[str], own: list[str], rest: list[str] | None
) -> None:
    expected = given[len(own) :] if rest is None else rest
    assert run_command.divided(given) == (own, expected)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            [],
            "ddpcheck: ddpcheck run was given no script [script-missing-file]\n"
            "  expected   ddpcheck run [options] [-m MODULE | train.py] ARGS...\n"
            "  found      nothing after run\n"
            "  fix        ddpcheck run train.py ARGS, as after torchrun\n"
            "  more       ddpcheck --explain script-missing-file\n",
        ),
        (
            ["missing.py", "--lr", "1"],
            "ddpcheck: there is no file missing.py [script-missing-file]\n"
            "  expected   ddpcheck run [options] train.py ARGS, or -m MODULE ARGS\n"
            "  found      nothing of that name\n"
            "  fix        give the path of the training script; what follows it is its "
            "own\n"
            "  more       ddpcheck --explain script-missing-file\n",
        ),
        (
            ["-m"],
            "ddpcheck: -m was given no module [script-missing-file]\n"
            "  expected   ddpcheck run [options] [-m MODULE | train.py] ARGS...\n"
            "  found      nothing after -m\n"
            "  fix        name the module, as after `python -m`\n"
            "  more       ddpcheck --explain script-missing-file\n",
        ),
        (
            ["--modes", "dp", "train.py"],
            "ddpcheck: --modes is not an option of ddpcheck run [option-usage]\n"
            "  expected   ddpcheck run [options] [-m MODULE | train.py] ARGS...\n"
            "  found      --modes\n"
            "  fix        leave it out: the script decides that; options of the script "
            "come after its name\n"
            "  more       ddpcheck --explain option-usage\n",
        ),
    ],
)
def test_wrong_arguments_are_refused(
    given: list[str],
    text: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", *given]) == 2
    assert capsys.readouterr().err == text
    assert not list(tmp_path.iterdir())


def test_group_of_a_launcher_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class _Member:
        is_leader = True

        def is_idle(self) -> bool:
            return False

        def run(self, function: Callable[[], int]) -> int:
            return function()

        def leave(self, code: int) -> int:
            return code

    monkeypatch.setattr("ddpcheck.cli.main._member", _Member)
    assert main(["run", "train.py"]) == 2
    assert "starts ranks itself [option-usage]" in capsys.readouterr().err
