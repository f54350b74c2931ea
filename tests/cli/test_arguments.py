"""Arguments that are refused: unknown ones, idle ones, and a second target."""

from __future__ import annotations

import pytest

from ddpcheck.cli import arguments
from ddpcheck.cli.arguments import WAYS
from ddpcheck.errors.problem import UsageError

VALUES = {"init": ["mymodel.py"], "explain": ["target-no-loss"], "render": ["r.json"]}
ACTIONS = {
    action.option_strings[-1]: action
    for action in arguments.parser()._actions  # noqa: SLF001 (no public list)
    if action.option_strings
}
OPTIONS = sorted(set(ACTIONS) - {f"--{way}" for way in WAYS} - {"--help"})


def _refused(*given: str) -> str:
    with pytest.raises(UsageError) as caught:
        arguments.parser().parse_args(given)
    return str(caught.value)


def _with_value(option: str) -> list[str]:
    is_flag = ACTIONS[option].nargs == 0
    return [option] if is_flag else [option, "html" if option == "--format" else "2"]


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("way", WAYS)
def test_way_in_refuses_every_option_that_it_has_not(way: str, option: str) -> None:
    given = [f"--{way}", *VALUES.get(way, []), *_with_value(option)]
    if option in WAYS[way].options:
        arguments.parser().parse_args(given)
    elif option == "--format":
        assert "--format is an option of --render only" in _refused(*given)
    else:
        first = _refused(*given).splitlines()[0]
        assert first == (
            f"ddpcheck: {option} is not an option of --{way} [{WAYS[way].slug}]"
        )


@pytest.mark.parametrize(
    "option", ["--json", "--junit-xml", "--sarif", "--report-dir", "--baseline"]
)
def test_empty_path_is_refused(option: str) -> None:
    assert _refused("mymodel.py", f"{option}=") == (
        f"ddpcheck: {option} is empty [option-usage]\n"
        "  expected   a path\n"
        "  found      ''\n"
        f"  fix        give {option} a path, or leave it out\n"
        "  more       ddpcheck --explain option-usage"
    )


def test_target_has_every_option_but_that_of_another_way_in() -> None:
    for option in set(OPTIONS) - {"--format"}:
        arguments.parser().parse_args(["x.py", *_with_value(option)])


def test_help_is_given_with_anything() -> None:
    for option in OPTIONS:
        arguments.parser().parse_args(["-h", *_with_value(option)])
        arguments.parser().parse_args(["--rules", "-h", *_with_value(option)])


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            ["--render", "r.json", "--junit-xml", "x.xml"],
            "ddpcheck: --junit-xml is not an option of --render [option-usage]\n"
            "  expected   ddpcheck --render report.json [--format FORMAT]; --diff, -q "
            "or -v on a terminal\n"
            "  fix        leave it out\n"
            "  more       ddpcheck --explain option-usage",
        ),
        (
            ["--render", "r.json", "--format", "html", "-q"],
            "ddpcheck: --quiet is not an option of --render --format html "
            "[option-usage]\n"
            "  expected   ddpcheck --render report.json [--format FORMAT]; --diff, -q "
            "or -v on a terminal\n"
            "  fix        leave it out\n"
            "  more       ddpcheck --explain option-usage",
        ),
        (
            ["--demo", "--world-sizes", "2", "--json", "-"],
            "ddpcheck: --json, --world-sizes are not options of --demo [option-usage]\n"
            "  expected   ddpcheck --demo [--report-dir reports] [-q | -v]\n"
            "  fix        leave them out\n"
            "  more       ddpcheck --explain option-usage",
        ),
        (
            ["--suite", "--model-fn", "net"],
            "ddpcheck: --model-fn is not an option of --suite [option-suite]\n"
            "  expected   ddpcheck --suite with some of --world-sizes, --modes, "
            "--ps-reduce, --batch-norm, --loss, --dtype, --device, --tolerance, "
            "--timeout-s, -q and -v\n"
            "  fix        leave it out\n"
            "  more       ddpcheck --explain option-suite",
        ),
    ],
)
def test_idle_options_are_reported_whole(given: list[str], text: str) -> None:
    assert _refused(*given) == text


TWO = (
    "ddpcheck: one target is checked at a time [option-usage]\n"
    "  expected   ddpcheck TARGET [options]\n"
    "  found      a.py, b.py\n"
    "  fix        run one after the other, or all in one session: pytest --ddpcheck "
    "a.py b.py\n"
    "  more       ddpcheck --explain option-usage"
)
BLANK = (
    "ddpcheck: '--world-sizes 2' is one argument that contains a space [option-usage]\n"
    "  expected   ddpcheck TARGET [options]\n"
    "  fix        two arguments: --world-sizes 2\n"
    "  more       ddpcheck --explain option-usage"
)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["a.py", "b.py"], TWO),
        (["a.py", "-q", "b.py"], TWO),
        (["a.py", "--", "b.py"], TWO),
        (["--", "a.py", "b.py"], TWO),
        (["a.py", "--world-sizes 2"], BLANK),
        (["--world-sizes 2", "a.py"], BLANK),
        (["--world-sizes 2"], BLANK),
        (["a.py", "--world-size 2"], BLANK.replace("sizes 2'", "size 2'")),
        (
            ["a.py", "--accept norm/local-batch-stats=by design"],
            "ddpcheck: '--accept norm/local-batch-stats=by design' is one argument "
            "that contains a space [option-usage]\n"
            "  expected   ddpcheck TARGET [options]\n"
            "  fix        two arguments: --accept 'norm/local-batch-stats=by design'\n"
            "  more       ddpcheck --explain option-usage",
        ),
        (
            ["a.py", "--no-fix "],
            "ddpcheck: '--no-fix ' is one argument that contains a space "
            "[option-usage]\n"
            "  expected   ddpcheck TARGET [options]\n"
            "  fix        remove the space: --no-fix\n"
            "  more       ddpcheck --explain option-usage",
        ),
        (
            ["--", "-dash.py", "-q"],
            "ddpcheck: -q comes after --, where options are not read [option-usage]\n"
            "  expected   ddpcheck TARGET [options]\n"
            "  fix        write -q before --\n"
            "  more       ddpcheck --explain option-usage",
        ),
        (
            ["--rules", "a", "b"],
            "ddpcheck: a was given together with another command [option-usage]\n"
            "  expected   ddpcheck TARGET [options]\n"
            "  fix        ddpcheck --help\n"
            "  more       ddpcheck --explain option-usage",
        ),
    ],
)
def test_what_fits_nowhere_is_reported_whole(given: list[str], text: str) -> None:
    assert _refused(*given) == text


@pytest.mark.parametrize("name", ["-dash.py", "--world-sizes 2", "my model.py"])
def test_target_after_two_dashes_may_be_called_anything(name: str) -> None:
    args = arguments.parser().parse_args(["-q", "--", name])
    assert (args.target, args.quiet) == (name, True)


def test_value_may_hold_a_blank() -> None:
    given = ["x.py", "--accept", "norm/a=by design", "--json", "my report.json"]
    args = arguments.parser().parse_args(given)
    assert (args.accept, args.json) == (["norm/a=by design"], "my report.json")
