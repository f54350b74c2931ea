"""The headers of the corpus, and the choice of programs that every run checks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddpcheck.run.intervention import (
    GlobalModule,
    ScaleLoss,
    Substitute,
    Switch,
    describe,
)
from tests.corpus import coverage
from tests.corpus.programs import FOLDER, HeaderError, programs, read
from tests.diagnose.test_pages import SLUGS


def _written(folder: Path, text: str) -> Path:
    path = folder / "loss" / "small.py"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    return path


def test_header_says_findings_options_and_what_is_needed(tmp_path: Path) -> None:
    text = (
        "# expect: loss/sum-reduction verified, norm/local-batch-stats failed,\n"
        "#   unknown unverified\n"
        "# options: --world-sizes 3 --modes dp,ddp\n"
        "# needs: torch 2.9: gloo of older versions has none\n"
        "# slow: it compiles\n"
        "# shows: a sum,\n"
        "#   and a norm\n"
        "\nmodel = None\n# expect: not read here\n"
    )
    program = read(_written(tmp_path, text))
    assert (program.name, program.verdict) == ("loss/small", "divergent")
    assert program.findings == (
        ("loss/sum-reduction", True),
        ("norm/local-batch-stats", False),
        ("unknown", None),
    )
    assert program.options.world_sizes == (3,)
    assert program.options.modes == ("dp", "ddp")
    assert program.needs == ((2, 9), "gloo of older versions has none")
    assert (program.slow, program.shows) == ("it compiles", "a sum, and a norm")
    assert program.source == text


def test_header_without_options_means_ddp_at_world_size_2(tmp_path: Path) -> None:
    program = read(_written(tmp_path, "# expect: equivalent\n# shows: right\n"))
    assert (program.verdict, program.findings) == ("equivalent", ())
    assert (program.options.world_sizes, program.options.modes) == ((2,), ("ddp",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", 'the line "# expect: " is missing at the top'),
        ("model = 1\n", 'the line "# expect: " is missing at the top'),
        ("\n# expect: equivalent\n", 'the line "# expect: " is missing at the top'),
        ("# expect: equivalent\n", 'the line "# shows: " is missing at the top'),
        (
            "# expects: equivalent\n",
            "'# expects: equivalent' is none of the lines "
            '"# expect: ", "# options: ", "# needs: ", "# slow: ", "# shows: "',
        ),
        (
            "# expect: equivalent\n# expect: equivalent\n",
            'there are two lines "# expect: "',
        ),
        (
            "# expect: loss/sum-reduction\n# shows: a sum\n",
            "expect: 'loss/sum-reduction' is neither \"equivalent\" nor a slug and one "
            "of verified, failed, unverified",
        ),
        (
            "# expect: loss/sum-reduction proven\n# shows: a sum\n",
            "expect: 'loss/sum-reduction proven' is neither \"equivalent\" nor a slug "
            "and one of verified, failed, unverified",
        ),
        (
            "# expect: equivalent\n# options: --modes dpp\n# shows: right\n",
            "options: --modes cannot be 'dpp'",
        ),
        (
            "# expect: equivalent\n# needs: a new torch\n# shows: right\n",
            "needs: 'a new torch' is not \"torch X.Y: why\"",
        ),
    ],
)
def test_malformed_header_is_refused_with_file_and_reason(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(HeaderError) as raised:
        read(_written(tmp_path, text))
    assert str(raised.value) == f"tests/corpus/loss/small.py: {message}"


def test_headers_name_slugs_of_the_registry_alone() -> None:
    named = {slug for program in programs().values() for slug in program.slugs}
    assert named - {"unknown", *SLUGS} == set()


def test_first_lines_of_the_benchmark_name_slugs_of_the_registry_alone() -> None:
    folder = FOLDER.parents[1] / "benchmarks/causes"
    broken = [p for p in folder.glob("[a-z]*.py") if not p.stem.endswith("_fixed")]
    lines = [p.read_text("utf-8").partition("\n")[0] for p in broken]
    assert len(lines) > 70
    assert [line for line in lines if not line.startswith("# expect: ")] == []
    named = {
        s for line in lines for s in re.split(", | or ", line[len("# expect: ") :])
    }
    assert named - set(SLUGS) == set()


def test_program_lies_in_the_folder_of_its_first_cause() -> None:
    misplaced = [
        program.name
        for program in programs().values()
        if program.path.parent.name
        != (program.slugs[0].partition("/")[0] if program.slugs else "sound")
    ]
    assert misplaced == []


def test_no_program_is_left_to_be_written() -> None:
    unwritten = [p.name for p in programs().values() if "TODO" in p.source]
    assert unwritten == []


def test_programs_are_files_of_the_folders_alone() -> None:
    """Elsewhere a program would be read by no test."""
    own = {"__init__.py", "coverage.py", "programs.py"}
    assert {p.name for p in FOLDER.glob("*.py")} == own
    deep = [p for p in FOLDER.glob("*/**/*.py") if p.parent.parent != FOLDER]
    assert deep == []


def _exercised() -> set[str]:
    """Returns what the pages' examples and the chosen programs exercise together."""
    chosen = [coverage.covers(programs()[name]) for name in coverage.quick()]
    return coverage.covered_by_pages().union(*chosen)


def test_every_run_checks_each_slug_that_a_program_has() -> None:
    named = {slug for program in programs().values() for slug in program.slugs}
    assert len(named & set(SLUGS)) > 55
    assert named - _exercised() == set()
    chosen = {slug for name in coverage.quick() for slug in programs()[name].slugs}
    assert "unknown" in chosen  # it has no page with an example


def test_every_run_checks_each_known_proof_and_both_verdicts() -> None:
    known = {name for row in coverage.table().values() for name in row.interventions}
    assert len(known) > 70
    assert known - _exercised() == set()
    verdicts = {programs()[name].verdict for name in coverage.quick()}
    assert verdicts == {"divergent", "equivalent"}


def test_every_run_checks_what_sound_programs_use() -> None:
    sound = [p for p in programs().values() if not (p.findings or p.slow or p.needs[1])]
    used = set().union(*(coverage.covers(program) for program in sound))
    assert {"dist.all_reduce", "DDP.no_sync", "DDP(process_group)", "nn.GRU"} <= used
    assert used - _exercised() == set()


def test_ci_checks_each_list_of_slugs_each_proof_beside_its_slug_and_all_sound() -> (
    None
):
    chosen = coverage.in_ci()
    runnable = [p for p in programs().values() if not p.needs[1]]
    assert {p.name for p in runnable if not p.findings} <= chosen
    checked = set().union(*(coverage.pairs(programs()[name]) for name in chosen))
    known = set().union(*(coverage.pairs(p) for p in runnable if p.findings))
    assert len(known) > 250
    assert known - checked == set()
    assert coverage.quick() < chosen < set(programs())


def test_no_chosen_program_is_superfluous() -> None:
    chosen = {n: coverage.covers(programs()[n]) for n in coverage.quick()}
    for name, covered in chosen.items():
        others = coverage.covered_by_pages().union(
            *(c for n, c in chosen.items() if n != name)
        )
        assert covered - others, name


def test_table_names_programs_and_pages_alone() -> None:
    known = {*programs(), *(f"page/{slug}" for slug in SLUGS)}
    assert set(coverage.table()) - known == set()


def test_sentence_of_a_fix_is_read_back_as_its_interventions() -> None:
    fixes = (
        ScaleLoss(factor=0.5),
        GlobalModule(name="norm"),
        Substitute(boundary="state", names=("a", "b")),
        Switch.FIND_UNUSED,
    )
    sentence = f"with {describe(fixes)} the runs are equal"
    assert coverage.proven_by(sentence) == [
        "FIND_UNUSED",
        "GlobalModule",
        "ScaleLoss",
        "Substitute(state)",
    ]


def test_results_of_a_run_become_rows_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, page = min(programs()), f"page/{SLUGS[0]}"
    rows = "".join(
        f'<testcase><properties><property name="program" value="{program}"/>'
        '<property name="jobs" value="7"/>'
        '<property name="interventions" value="A B"/></properties></testcase>'
        for program in (name, page, "loss/long-gone")
    )
    (tmp_path / "x.xml").write_text(f"<suite>{rows}<testcase/></suite>", "utf-8")
    monkeypatch.setattr(coverage, "TABLE", tmp_path / "table.json")
    monkeypatch.setattr(coverage, "table", dict)
    coverage.record(tmp_path / "x.xml")
    expected = f'{{\n "{name}": [7, "A", "B"],\n "{page}": [7, "A", "B"]\n}}\n'
    assert (tmp_path / "table.json").read_text("utf-8") == expected
