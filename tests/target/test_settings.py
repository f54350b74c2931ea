"""Values of settings: what is allowed, from where, and who wins."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpcheck.errors.problem import UsageError
from ddpcheck.run.modes.registry import CHOICES
from ddpcheck.target import settings, target
from ddpcheck.target.options import LOSSES, SETTINGS, Options, Setting
from ddpcheck.target.target import TargetRef


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("world_sizes", "2,4,8", (2, 4, 8)),
        ("world_sizes", " 3 , 3", (3,)),
        ("modes", "ddp", ("ddp",)),
        ("modes", "ps, dp", ("ps", "dp")),
        ("ps_reduce", "sum", "sum"),
        ("batch_norm", "asis,sync", ("asis", "sync")),
        ("loss", "iou", ("iou",)),
        ("simulate", "256,4096", (256, 4096)),
        ("max_memory", "1.5", 1.5),
        ("steps", "1", 1),
        ("dtype", "bfloat16", "bfloat16"),
        ("tolerance", "1e-6", 1e-6),
        ("tolerance", "1e-15", 1e-15),
        ("tolerance", "0.1", 0.1),
        ("timeout_s", "0.5", 0.5),
        ("seed", "0", 0),
        (
            "accept",
            ["loss/router-aux=known, and fine = so"],
            {"loss/router-aux": "known, and fine = so"},
        ),
        (
            "accept",
            ["loss/router-aux"],
            {"loss/router-aux": "accepted without a reason"},
        ),
    ],
)
def test_text_is_read(name: str, text: Any, value: Any) -> None:
    assert getattr(settings.make({name: text}, {}, modes=CHOICES), name) == value


@pytest.mark.parametrize(
    ("name", "text", "fix"),
    [
        ("world_sizes", "2,0", "--world-sizes 2,4,8"),
        ("world_sizes", "", "--world-sizes 2,4,8"),
        ("world_sizes", "two", "--world-sizes 2,4,8"),
        ("modes", "dpp", "--modes dp"),
        ("ps_reduce", "max", "--ps-reduce sum"),
        ("batch_norm", "synced", "--batch-norm sync"),
        ("loss", "mse", "--loss mean,masked"),
        ("noise", "off", "--noise sample"),
        ("simulate", "0", "--simulate 256,1024,4096"),
        ("max_memory", "0", "--max-memory 16"),
        ("steps", "0", "--steps 3"),
        ("steps", "1.5", "--steps 3"),
        ("dtype", "float8", "--dtype float64"),
        ("device", "gpu", "--device cpu"),
        ("tolerance", "0", "--tolerance 1e-6"),
        ("tolerance", "nan", "--tolerance 1e-6"),
        ("tolerance", "2", "--tolerance 1e-6"),
        ("tolerance", "0.11", "--tolerance 1e-6"),
        ("tolerance", "9e-16", "--tolerance 1e-6"),
        ("timeout_s", "-1", "--timeout-s 60"),
        ("timeout_s", "inf", "--timeout-s 60"),
        ("seed", "-1", "--seed 0"),
        ("seed", "2147483648", "--seed 0"),  # numpy takes 32 bits
        ("accept", ["sum"], "--accept norm/local-batch-stats=known"),
    ],
)
def test_wrong_text_is_a_usage_error_with_a_fix(name: str, text: Any, fix: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings.make({name: text}, {}, modes=CHOICES)
    assert caught.value.problem.slug == "option-value"
    assert caught.value.problem.fix == fix


@pytest.mark.parametrize(
    ("slug", "fix"),
    [
        (
            "loss/localnormalizer",
            "did you mean loss/local-normalizer, loss/accum-normalizer?",
        ),
        ("loss/local-normalizer,loss/router-aux", "did you mean loss/local-normalizer"),
        ("norm/", "did you mean norm/local-batch-stats, norm/running-stats-rank0, "),
        ("no/such", "ddpcheck --rules lists them all"),
    ],
    ids=["misspelt", "two-in-one", "family", "unlike-any"],
)
@pytest.mark.parametrize("form", [str, lambda s: [f"{s}=why"], lambda s: {s: "why"}])
def test_acceptance_of_an_unknown_slug_is_a_usage_error(
    form: Callable[[str], Any], slug: str, fix: str
) -> None:
    with pytest.raises(UsageError) as caught:
        settings.read("accept", form(slug), origin="accept=")
    problem = caught.value.problem
    assert problem.slug == "option-value"
    assert problem.message == f"accept= names no known cause: {slug!r}"
    assert problem.fix.startswith(fix)


def test_unknown_slug_is_reported_whole_wherever_it_is_written(tmp_path: Path) -> None:
    near = _project(tmp_path, '[tool.ddpcheck]\naccept = ["loss/sum-reductoin"]\n')
    with pytest.raises(UsageError) as caught:
        settings.from_project(near, modes=CHOICES)
    assert str(caught.value) == (
        "ddpcheck: accept in [tool.ddpcheck] of pyproject.toml names no known cause: "
        "'loss/sum-reductoin' [option-value]\n"
        "  expected   slugs of --rules (family/name), each with or without a reason\n"
        "  found      ['loss/sum-reductoin']\n"
        "  fix        did you mean loss/sum-reduction?\n"
        "  more       ddpcheck --explain option-value"
    )
    path = tmp_path / "mine.py"
    path.write_text(
        "accept = {'no/such': 'x'}\nmodel = batch = loss = print\n", encoding="utf-8"
    )
    with pytest.raises(UsageError) as caught:
        target.load(TargetRef(path=str(path)))
    assert (
        caught.value.problem.message
        == "`accept` in mine.py names no known cause: 'no/such'"
    )


def test_wrong_text_is_reported_whole() -> None:
    with pytest.raises(UsageError) as caught:
        settings.make({"dtype": "float46"}, {}, modes=CHOICES)
    assert str(caught.value) == (
        "ddpcheck: --dtype cannot be 'float46' [option-value]\n"
        "  expected   auto, float64, float32, bfloat16 or float16\n"
        "  found      'float46'\n"
        "  fix        --dtype float64\n"
        "  more       ddpcheck --explain option-value"
    )


def test_unknown_mode_is_reported_whole() -> None:
    with pytest.raises(UsageError) as caught:
        settings.make({"modes": "fsdp"}, {}, modes=CHOICES)
    assert str(caught.value) == (
        "ddpcheck: --modes cannot be 'fsdp' [option-value]\n"
        "  expected   some of dp, ddp or ps, separated by commas\n"
        "  found      'fsdp'\n"
        "  fix        --modes dp,ddp\n"
        "  more       ddpcheck --explain option-value"
    )


def test_tolerance_out_of_range_is_reported_whole() -> None:
    with pytest.raises(UsageError) as caught:
        settings.make({"tolerance": "0.5"}, {}, modes=CHOICES)
    assert str(caught.value) == (
        "ddpcheck: --tolerance cannot be '0.5' [option-value]\n"
        "  expected   a relative difference from 1e-15 (less is float64's own "
        "rounding) to 0.1 (more lets faults pass)\n"
        "  found      '0.5'\n"
        "  fix        --tolerance 1e-6\n"
        "  more       ddpcheck --explain option-value"
    )


def test_what_is_no_slug_is_reported_whole() -> None:
    with pytest.raises(UsageError) as caught:
        settings.make({"accept": ["bogus"]}, {}, modes=CHOICES)
    assert str(caught.value) == (
        "ddpcheck: --accept cannot be ['bogus'] [option-value]\n"
        "  expected   slugs of --rules (family/name), each with or without a reason\n"
        "  found      ['bogus']\n"
        "  fix        --accept norm/local-batch-stats=known\n"
        "  more       ddpcheck --explain option-value"
    )


def test_tolerance_out_of_range_is_refused_in_a_target_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("tolerance = 2\nmodel = batch = loss = print\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"`tolerance` in mine\.py cannot be 2 "):
        target.load(TargetRef(path=str(path)))


def _project(folder: Path, text: str) -> Path:
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    inner = folder / "models"
    inner.mkdir()
    return inner / "mymodel.py"


def test_project_gives_what_no_option_does(tmp_path: Path) -> None:
    near = _project(
        tmp_path,
        "[tool.ddpcheck]\nworld-sizes = [2, 3]\nsteps = 5\nseed = 7\nfix = false\n"
        'report_dir = "out"\n[tool.ddpcheck.accept]\n"loss/router-aux" = "because"\n',
    )
    project = settings.from_project(near, modes=CHOICES)
    options = settings.make(
        {"steps": "2", "accept": ["loss/uneven-shard=so"]}, project, modes=CHOICES
    )
    assert options == Options(
        steps=2,
        seed=7,
        fix=False,
        accept={"loss/router-aux": "because", "loss/uneven-shard": "so"},
        project={"world_sizes": (2, 3)},
    )
    assert project["report_dir"] == "out"


def test_nearest_table_counts_and_files_without_one_are_passed_over(
    tmp_path: Path,
) -> None:
    near = _project(tmp_path, "[tool.ddpcheck]\nseed = 1\n")
    (near.parent / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert settings.from_project(near, modes=CHOICES) == {"seed": 1}


def test_unknown_key_is_reported_whole(tmp_path: Path) -> None:
    near = _project(tmp_path, "[tool.ddpcheck]\nworld_size = [2]\n")
    with pytest.raises(UsageError) as caught:
        settings.from_project(near, modes=CHOICES)
    assert str(caught.value) == (
        "ddpcheck: [tool.ddpcheck] has no setting 'world_size' [settings-unknown]\n"
        "  expected   accept, allow_writes, batch_norm, cuda_as_cpu, deadline_s, "
        "device, dtype, fix, loss, max_memory, modes, noise, ps_reduce, report_dir, "
        "resume_args, resume_at, seed, simulate, steps, timeout_s, tolerance, "
        "world_sizes\n"
        f"  found      'world_size' in {tmp_path}/pyproject.toml\n"
        "  fix        did you mean world_sizes?\n"
        "  more       ddpcheck --explain settings-unknown"
    )


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ("[tool.ddpcheck\n", "settings-file"),
        ("[tool.ddpcheck]\nsteps = true\n", "option-value"),
        ("[tool.ddpcheck]\nworld_sizes = [2.5]\n", "option-value"),
        ("[tool.ddpcheck]\nworld_sizes = []\n", "option-value"),
        ("[tool.ddpcheck]\ntolerance = 0.5\n", "option-value"),
        ("[tool]\nddpcheck = 3\n", "settings-unknown"),
    ],
)
def test_wrong_project_file_is_a_usage_error(
    text: str, slug: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        settings.from_project(_project(tmp_path, text), modes=CHOICES)
    assert caught.value.problem.slug == slug


def test_losses_to_choose_from_are_the_suites() -> None:
    from ddpcheck.target import losses  # noqa: PLC0415

    assert set(LOSSES) == {"asis", *losses.BUILTIN}


def test_settings_of_the_table_are_the_fields_of_options() -> None:
    fields = {one.name for one in dataclasses.fields(Options)}
    assert {one.name for one in SETTINGS} == fields - {"project"} | {"report_dir"}
    assert target.SETTINGS == ("world_sizes", "simulate", "tolerance", "accept")


@pytest.mark.parametrize("one", SETTINGS, ids=lambda one: one.name)
def test_example_of_a_setting_can_be_read(one: Setting) -> None:
    if one.metavar:
        settings.read(one.name, one.example, origin=one.option, modes=CHOICES)
    else:
        value = one.name != "fix"
        assert one.argument() == {"action": "store_const", "const": value}
        assert one.read(value) is value


def test_code_of_a_file_is_no_setting(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import math as tolerance\n"
        "def simulate(steps): return steps\n"
        "accept = lambda proposal: True\n"
        "world_sizes = [2]\n"
        "model = batch = loss = simulate\n",
        encoding="utf-8",
    )
    found = target.load(TargetRef(path=str(path))).settings
    assert found == {"world_sizes": (2,)}
