"""Exceptions in words: what a message shows, which line is named."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpcheck.checking import exits
from ddpcheck.compare import tree
from ddpcheck.errors import raised
from ddpcheck.errors.problem import Problem, UsageError, shortened

GLOO = "[/__w/pytorch/gloo/transport/tcp/pair.cc:537] Connection closed by peer [::1]"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (GLOO, "Connection closed by peer [::1]"),
        (f"RuntimeError: {GLOO}", "RuntimeError: Connection closed by peer [::1]"),
        ("DistError: [../c10d/NCCL.cpp:7] timed out", "DistError: timed out"),
        ("KeyError: [1, 2]", "KeyError: [1, 2]"),
        ("[Rank 1] [a.cpp:3] Watchdog", "[Rank 1] [a.cpp:3] Watchdog"),
        ("no place [pair.cc:5]", "no place [pair.cc:5]"),
    ],
)
def test_place_in_the_source_of_gloo_is_left_out(text: str, shown: str) -> None:
    assert raised.without_source(text) == shown


def _error_of(folder: Path, **files: str) -> Exception:
    """Returns what `target` raises when it is imported in this folder."""
    for name, source in files.items():
        (folder / f"{name}.py").write_text(source, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        try:
            importlib.import_module("target")
        except Exception as error:  # noqa: BLE001 (any of them)
            return error
        finally:
            for name in files:
                sys.modules.pop(name, None)
    pytest.fail("it raises nothing")


HELPER = "import helper_of_target\nhelper_of_target.run({})\n"


@pytest.mark.parametrize(
    ("helper", "expected"),
    [
        (
            "def run(x):\n    return x['rows']\n",
            "KeyError: 'rows', at helper_of_target.py:2",
        ),
        (
            "def run(x):\n    raise ValueError('a')\n",
            "ValueError: a, at helper_of_target.py:2",
        ),
        (
            "\nx = (\n",
            "SyntaxError: '(' was never closed, at helper_of_target.py:2",
        ),
        # Python's own lines say nothing: the one that called them does.
        (
            "import json\ndef run(x):\n    json.loads('')\n",
            (
                "JSONDecodeError: Expecting value: line 1 column 1 (char 0), "
                "at helper_of_target.py:3"
            ),
        ),
        # Of a library, both.
        (
            "import jinja2\ndef run(x):\n    jinja2.Environment().get_template('')\n",
            "called at helper_of_target.py:3",
        ),
        (
            "import torch\ndef run(x):\n    torch.nn.Module()(x)\n",
            (
                'NotImplementedError: Module [Module] is missing the required "forward"'
                " function, at helper_of_target.py:3"
            ),
        ),
        # Three lines of a message, and then the place.
        (
            "def run(x):\n    raise ValueError('a\\n\\n\\tb\\nc\\nd')\n",
            "ValueError: a\nb\nc ...\nat helper_of_target.py:2",
        ),
    ],
    ids=["key", "value", "syntax", "python", "library", "torch", "lines"],
)
def test_innermost_line_outside_of_torch_is_named(
    helper: str, expected: str, tmp_path: Path
) -> None:
    error = _error_of(tmp_path, target=HELPER, helper_of_target=helper)
    assert expected in raised.in_words(error, tmp_path)


def test_line_of_a_library_is_named_from_where_it_is_installed(tmp_path: Path) -> None:
    source = "import jinja2\njinja2.Environment().get_template('')\n"
    where = raised.place(_error_of(tmp_path, target=source), tmp_path)
    assert where.startswith("at jinja2/environment.py:")
    assert where.endswith(", called at target.py:2")


def test_file_elsewhere_is_named_by_its_path(tmp_path: Path) -> None:
    error = _error_of(tmp_path, target="1 / 0\n")
    assert raised.place(error, tmp_path / "other") == f"at {tmp_path}/target.py:1"


def test_exception_without_a_line_has_no_place() -> None:
    assert raised.in_words(SystemExit(), Path()) == "SystemExit"


def test_stack_leaves_out_the_frames_of_ddpcheck_and_of_imports(tmp_path: Path) -> None:
    source = (
        "from ddpcheck.compare import tree\n"
        "def broken(path, leaf):\n"
        "    try:\n        {}['rows']\n"
        "    except KeyError as error:\n"
        "        raise ValueError('no rows') from error\n"
        "import torch\n"
        "tree.replace([torch.zeros(1)], broken)\n"
    )
    stack = raised.stack(_error_of(tmp_path, target=source))
    lines = [line for line in stack.splitlines() if f'File "{tmp_path}' in line]
    assert lines == [
        f'  File "{tmp_path}/target.py", line 4, in broken',
        f'  File "{tmp_path}/target.py", line 8, in <module>',
        f'  File "{tmp_path}/target.py", line 6, in broken',
    ]
    assert tree.__file__ not in stack
    assert "<frozen" not in stack
    assert "\nValueError: no rows\n" in stack


def _wrong() -> int:
    raise UsageError(
        Problem(slug="target-raises", message="it raises", stack="Traceback:\n  a\n")
    )


@pytest.mark.parametrize("verbose", [False, True])
def test_stack_of_a_wrong_target_is_shown_when_verbose(
    *, verbose: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exits.guarded(_wrong, verbose=verbose) == 2
    stack = "  stack, without ddpcheck's own frames:\n    Traceback:\n      a\n"
    assert capsys.readouterr().err == (
        "ddpcheck: it raises [target-raises]\n"
        "  more       ddpcheck --explain target-raises\n" + stack * verbose
    )


def test_message_whose_str_raises_is_reported() -> None:
    class UnprintableError(ValueError):
        def __str__(self) -> str:
            raise KeyError

    assert raised.message(UnprintableError()) == [
        "UnprintableError: no message: its __str__ raises KeyError"
    ]


def test_users_line_is_reported_also_in_a_folder_that_has_our_name(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "ddpcheck" / "torch"
    folder.mkdir(parents=True)
    error = _error_of(folder, target="import json\njson.loads('')\n")
    assert raised.users_place(error) == f"{folder / 'target.py'}:2"


LOUD = "\x1b[31mrot\x1b[0m " + "x" * 100_000
SHOWN = "\\x1b[31mrot\\x1b[0m " + "x" * 281 + " ... and 99,719 characters more"


def test_message_is_cut_at_300_characters_and_shows_how_many_it_lost() -> None:
    assert raised.text_of(ValueError(LOUD)) == SHOWN
    assert len(SHOWN.partition(" ... ")[0]) == 300
    assert raised.message(ValueError(LOUD)) == [f"ValueError: {SHOWN}"]


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "abc ... and 1 character more"),
        ("a\nb\tc", 9, "a\nb\tc"),
        ("a\x07b", 9, "a\\x07b"),
        ("a\x07b", 4, "a ... and 2 characters more"),
        ("\u202egnp.exe", 20, "\\u202egnp.exe"),
    ],
)
def test_text_is_cut_between_characters_as_they_are_shown(
    text: str, limit: int, shown: str
) -> None:
    assert shortened(text, limit) == shown


def _loud_error() -> Exception:
    error = ValueError(LOUD)
    error.__cause__ = KeyError(LOUD)
    return error


@pytest.mark.parametrize("stack_of", [raised.stack, raised.whole_stack])
def test_stack_has_the_messages_of_all_its_exceptions_cut(
    stack_of: Callable[[BaseException], str],
) -> None:
    stack = stack_of(_loud_error())
    assert stack.endswith(f"ValueError: {SHOWN}\n")
    assert stack.count(" characters more\n") == 2
    assert "\x1b" not in stack
    assert len(stack) < 2000


def test_names_of_files_are_written_out() -> None:
    problem = Problem(slug="target-raises", message="my\x1bmodel.py raises")
    assert str(problem).startswith("ddpcheck: my\\x1bmodel.py raises [")
