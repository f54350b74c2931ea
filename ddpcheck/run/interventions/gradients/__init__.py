"""Interventions on gradients, from the start of backward to the update.

Lives here: a file per idea; backwards.py, which they use to run a backward differently.
Not here: gradients that are the single-process ones (substitutes/).
"""
