"""The tool's own process imports neither torch nor numpy."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
import sys
import {module}
sys.exit("torch" in sys.modules or "numpy" in sys.modules)
"""


def _imports_torch(module: str) -> bool:
    program = PROGRAM.format(module=module)
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.returncode in (0, 1), done.stderr
    assert not done.stderr
    return bool(done.returncode)


@pytest.mark.parametrize("module", TOOL_SIDE)
def test_tool_side_module_imports_no_torch(module: str) -> None:
    assert not _imports_torch(f"ddpcheck.{module}")


def test_import_of_torch_would_be_seen() -> None:
    assert _imports_torch("ddpcheck.trace")
