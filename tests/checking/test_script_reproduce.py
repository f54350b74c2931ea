"""reproduce.py of a script: the command, with what bears on the run, and no more."""

from __future__ import annotations

import ast
import re
from dataclasses import fields, replace

import pytest

from ddpcheck.checking import script_reproduce
from ddpcheck.cli import arguments, commands, run_command
from ddpcheck.report.data import Fault, Quantity, Report
from ddpcheck.run.modes.registry import CHOICES
from ddpcheck.target import settings
from ddpcheck.target.options import SETTINGS, Options
from ddpcheck.target.script import Script
from tests.report.render import sample

SCRIPT = Script(
    path="/project/train.py",
    folder="/project",
    arguments=("--lr", "1", "--name={rank}"),
)
ALL = Options(
    world_sizes=(2,),
    steps=2,
    dtype="float32",
    device="cuda",
    tolerance=3e-7,
    accept={"loss/sum-reduction": "by design, = so", "data/sampler-epoch": "as it is"},
    fix=False,
    timeout_s=7.5,
    max_memory=3.0,
    seed=5,
    allow_writes=True,
    cuda_as_cpu=True,
    resume_args="--resume 'last one.pt'",
)
HUNG = Fault(kind="hung", rank=1, step=None, summary="hangs")
# The script decides these, or they bear on what is written, or on how long it takes.
OTHERS = {"world_sizes", "steps", "fix", "deadline_s", "report_dir", "modes"}


def _command(text: str) -> list[str]:
    (found,) = re.findall(r"^COMMAND = .*\*(\[.*\])\]$", text, re.MULTILINE)
    command: list[str] = ast.literal_eval(found)
    return command


def _late() -> Report:
    """Returns a report whose gradients differ from the second step on."""
    report = sample.script()
    run = replace(
        report.runs[0],
        verdict="divergent",
        gradients=Quantity(excess_by_step=(0.5, 7.0, 9.0)),
    )
    return replace(report, runs=(run, *report.runs[1:]))


def test_text_is_the_command_with_the_fewest_steps() -> None:
    text = script_reproduce.text(SCRIPT, _late(), Options(cuda_as_cpu=True))
    assert text == (
        '"""train.py: data/shard-overlap\n'
        "\n"
        "Checks the script again, on as few ranks and steps as show it. "
        "Exit code 1: it diverges.\n"
        '"""\n'
        "import subprocess\n"
        "import sys\n"
        "\n"
        "COMMAND = [sys.executable, \"-m\", \"ddpcheck\", *['run', '--world-sizes', "
        "'2', '--steps', '2', '--no-fix', '--cuda-as-cpu', '/project/train.py', "
        "'--lr', '1', '--name={rank}']]\n"
        "sys.exit(subprocess.run(COMMAND, cwd='/project').returncode)\n"
    )


def test_module_is_started_as_a_module() -> None:
    script = replace(SCRIPT, module="package.train")
    command = _command(script_reproduce.text(script, _late(), Options()))
    assert command[5:] == ["--no-fix", "-m", "package.train", *SCRIPT.arguments]


def test_command_has_all_settings_of_the_check() -> None:
    own, rest = run_command.divided(
        _command(script_reproduce.text(SCRIPT, _late(), ALL))[1:]
    )
    args = arguments.parser().parse_args([*own, "script"])
    assert settings.make(commands.given(args), {}, modes=CHOICES) == ALL
    assert rest == [SCRIPT.path, *SCRIPT.arguments]


def test_script_that_resumes_is_resumed_where_it_was() -> None:
    options = replace(ALL, resume_at=4, steps=6)
    own, _ = run_command.divided(
        _command(script_reproduce.text(SCRIPT, _late(), options))[1:]
    )
    args = arguments.parser().parse_args([*own, "script"])
    assert settings.make(commands.given(args), {}, modes=CHOICES) == options


def test_ranks_that_fail_are_given_the_steps_of_the_check() -> None:
    run = replace(_late().runs[0], faults=(HUNG,))
    text = script_reproduce.text(SCRIPT, replace(_late(), runs=(run,)), Options())
    assert "--steps" not in _command(text)


def test_there_is_none_without_a_divergence() -> None:
    report = replace(sample.script(), runs=sample.equivalent().runs)
    assert script_reproduce.text(SCRIPT, report, ALL) == ""


@pytest.mark.parametrize(
    "name", [one.name for one in SETTINGS if one.of in ("both", "scripts")]
)
def test_no_setting_is_forgotten(name: str) -> None:
    if name in OTHERS:
        return
    defaults = Options()
    assert name in {field.name for field in fields(Options)}
    value = getattr(ALL if name != "resume_at" else replace(ALL, resume_at=4), name)
    assert value != getattr(defaults, name), "give it a value above"
    text = script_reproduce.text(SCRIPT, _late(), replace(ALL, resume_at=4))
    option = next(one.option for one in SETTINGS if one.name == name)
    assert any(part.partition("=")[0] == option for part in _command(text))
