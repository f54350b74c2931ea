"""The tool's own process imports neither torch nor numpy."""

from __future__ import annotations

import subprocess
import sys

# What the command line and the reports import in the user's process.
TOOL_SIDE = (
    "assemble",
    "api",
    "checking",
    "cli",
    "diagnose",
    "options",
    "output",
    "plan",
    "ranks.pool",
    "report",
    "run.spec",
    "session",
    "settings",
    "suite",
    "target",
    "tolerance",
    "zoo.matrix",
)
PROGRAM = """
import importlib
import sys
for module in sys.argv[1:]:
    importlib.import_module("ddpcheck." + module)
    if "torch" in sys.modules or "numpy" in sys.modules:
        sys.exit(module)
"""


def _first_with_torch(*modules: str) -> str:
    """Returns the first of these modules after which torch is there, "" for none."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *modules],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1)
    return done.stderr.strip()


def test_tool_side_imports_no_torch() -> None:
    assert _first_with_torch(*TOOL_SIDE) == ""


def test_import_of_torch_would_be_seen() -> None:
    assert _first_with_torch("report", "trace", "cli") == "trace"
