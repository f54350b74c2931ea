"""reproduce.py of a script: the command that shows its divergence once more.

On as few ranks and steps as show it, with all settings of the check that bear on it.
"""

from __future__ import annotations

from ddpcheck.report.data import Report, Run
from ddpcheck.target.options import Options
from ddpcheck.target.script import Script

# The world size and the steps are those of the run that is shown. No cause is searched
# for, so nothing needs a deadline, and no other report is written.
_SETTINGS = (
    "dtype",
    "device",
    "tolerance",
    "accept",
    "timeout_s",
    "max_memory",
    "seed",
    "allow_writes",
    "cuda_as_cpu",
    "resume_at",
    "resume_args",
)

_TEXT = '''\
"""{name}: {slug}

Checks the script again, on as few ranks and steps as show it. Exit code 1: it diverges.
"""
import subprocess
import sys

COMMAND = [sys.executable, "-m", "ddpcheck", *{command!r}]
sys.exit(subprocess.run(COMMAND, cwd={folder!r}).returncode)
'''


def text(script: Script, report: Report, options: Options) -> str:
    """Returns the text of reproduce.py, "" without a divergence."""
    divergent = [run for run in report.runs if run.verdict == "divergent"]
    if not divergent:
        return ""
    run = min(divergent, key=lambda one: one.world_size)
    started = ["-m", script.module] if script.module else [script.path]
    if options.resume_at is not None:
        steps = options.arguments(["steps"])
    else:
        steps = [] if run.faults else ["--steps", str(_first_step(run) + 1)]
    command = ["run", "--world-sizes", str(run.world_size), *steps, "--no-fix"]
    command += options.arguments(_SETTINGS)
    return _TEXT.format(
        name=script.name,
        slug=report.findings[0].slug if report.findings else "divergence",
        command=[*command, *started, *script.arguments],
        folder=script.folder,
    )


def _first_step(run: Run) -> int:
    """Returns the first step (from 0) in which something differs."""
    quantities = (run.gradients, run.weights, run.buffers)
    series = [quantity.excess_by_step for quantity in quantities]
    bad = [s for one in series for s, excess in enumerate(one) if not excess <= 1]
    return min(bad, default=0)
