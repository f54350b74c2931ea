"""One process on the global batch, once more: its rounding, its noise, its repetition.

The reference itself is no mode: it is written, not compared (reference.py).
"""

from ddpcheck.run.modes.mode import Mode

SINGLE = Mode(
    name="single",
    title="one process on the global batch",
    entry_point="ddpcheck.run.modes.jobs.candidate:candidate",
    where="in one process",
)
