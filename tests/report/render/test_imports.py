"""Rendering needs no torch."""

from __future__ import annotations

import subprocess
import sys

MODULES = ("github", "html", "junit", "sarif", "terminal")
PROGRAM = """
import sys
{imports}
sys.exit("torch" in sys.modules or "numpy" in sys.modules)
"""


def _exit_code(*names: str) -> int:
    imports = "\n".join(f"import {name}" for name in names)
    program = PROGRAM.format(imports=imports)
    return subprocess.run([sys.executable, "-c", program], check=False).returncode


def test_importing_every_renderer_leaves_torch_out() -> None:
    assert _exit_code(*(f"ddpcheck.report.render.{name}" for name in MODULES)) == 0


def test_importing_numpy_would_be_seen() -> None:
    assert _exit_code("numpy") == 1
