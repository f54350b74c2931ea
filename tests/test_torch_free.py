"""The tool's own process imports neither torch nor numpy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# What the command line and the reports import in the user's process.
TOOL_SIDE = (
    "api",
    "checking.checking",
    "checking.plan",
    "checking.resuming",
    "cli.main",
    "compare.tolerance",
    "diagnose",
    "diagnose.script_data.judge",
    "diagnose.script_data.resumed",
    "diagnose.script_data.table",
    "ranks.pool",
    "report.data",
    "report.output",
    "run.modes.registry",
    "run.script.events",
    "run.session.assemble",
    "run.session.session",
    "run.spec",
    "suite.main",
    "suite.zoo.matrix",
    "target.options",
    "target.settings",
    "target.target",
)
PROGRAM = """
import importlib
import sys
for module in sys.argv[1:]:
    importlib.import_module("ddpcheck." + module)
    if "torch" in sys.modules or "numpy" in sys.modules:
        sys.exit(module)
"""


def _first_with_torch(*modules: str, folder: Path = ROOT) -> str:
    """Returns the first of these modules after which torch is there, "" for none."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *modules],
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])},
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1)
    return done.stderr.strip()


def test_tool_side_imports_no_torch() -> None:
    assert _first_with_torch(*TOOL_SIDE) == ""


def test_import_of_torch_would_be_seen(tmp_path: Path) -> None:
    # One that is imported sooner: nothing of it is used before a function runs.
    (tmp_path / "torch.py").write_text("Tensor = object\n", encoding="utf-8")
    found = _first_with_torch(
        "report.data", "compare.trace", "cli.main", folder=tmp_path
    )
    assert found == "compare.trace"
