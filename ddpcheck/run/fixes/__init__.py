"""Interventions: what a fix would do, applied in the ranks to a run (apply.py)."""
