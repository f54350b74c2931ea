"""From a divergent run to its causes: fix the first link, run again, go on.

Lives here: loop.py, which is the search, and choosing.py, one round of it.
Not here: what is proposed (rules/), what is run (run/interventions/).
"""
