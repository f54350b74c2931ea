"""What rules ask of a divergent run: facts that several rules share, by subject.

Lives here: case.py, all that is known of one run, and functions of it.
Not here: what measures the facts (probes/), what proposes a cause (rules/).
"""
