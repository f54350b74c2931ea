"""A repetition of the single-process run: to measure its rounding and noise.

The reference itself is not a mode: it is written, not compared (jobs/reference.py).
"""

from ddpcheck.run.modes.mode import Mode

SINGLE = Mode(
    name="single",
    title="one process on the global batch",
    entry_point="ddpcheck.run.modes.jobs.candidate:candidate",
    where="in one process",
)
