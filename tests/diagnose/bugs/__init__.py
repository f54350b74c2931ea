"""Bugs as training code has them, small: name -> (source, findings).

Each was missed, or called by another name, before it stood here. `HEAD` of
negative_controls comes before each source. A finding is (slug, verified).
"""

from __future__ import annotations

from tests.diagnose.bugs import (
    collectives,
    counts,
    loss,
    micro,
    reduction,
    statistics,
)

BUGS = {
    **loss.BUGS,
    **counts.BUGS,
    **micro.BUGS,
    **statistics.BUGS,
    **collectives.BUGS,
    **reduction.BUGS,
}
