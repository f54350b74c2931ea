"""From a divergence to its cause, proven by an intervention, or an honest unknown.

Lives here: engine.py, which searches; facts/, rules/ and search/; probes/ in the ranks.
Not here: interventions (run/interventions/), pages of rules (report/pages/).
"""
