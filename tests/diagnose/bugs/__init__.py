"""Bugs as training code has them, small: name -> (source, findings).

Each was missed, or called by another name, before it stood here. `HEAD` of
negative_controls comes before each source. A finding is (slug, verified).
"""

from __future__ import annotations

from tests.diagnose.bugs import (
    addends,
    at_once,
    behind,
    beside,
    clipped,
    collectives,
    counts,
    counts_of_all,
    decisions,
    hooks,
    injected,
    kept,
    late,
    listed,
    loss,
    micro,
    noise,
    on_the_way,
    order,
    outside,
    reduction,
    slopes,
    statistics,
    turned,
)

SOUND = {
    **addends.SOUND,
    **at_once.SOUND,
    **beside.SOUND,
    **clipped.SOUND,
    **collectives.SOUND,
    **counts_of_all.SOUND,
    **decisions.SOUND,
    **hooks.SOUND,
    **injected.SOUND,
    **listed.SOUND,
    **on_the_way.SOUND,
    **order.SOUND,
    **micro.SOUND,
    **outside.SOUND,
    **reduction.SOUND,
    **slopes.SOUND,
}
BUGS = {
    **addends.BUGS,
    **at_once.BUGS,
    **behind.BUGS,
    **beside.BUGS,
    **clipped.BUGS,
    **noise.BUGS,
    **on_the_way.BUGS,
    **loss.BUGS,
    **counts.BUGS,
    **counts_of_all.BUGS,
    **decisions.BUGS,
    **hooks.BUGS,
    **injected.BUGS,
    **kept.BUGS,
    **late.BUGS,
    **listed.BUGS,
    **order.BUGS,
    **micro.BUGS,
    **outside.BUGS,
    **slopes.BUGS,
    **statistics.BUGS,
    **collectives.BUGS,
    **reduction.BUGS,
    **turned.BUGS,
}
