"""Interventions on the collectives that the target calls.

Lives here: autograd.py, exact.py (their definition), reductions.py (sums become means).
Not here: gathering rows for ddpcheck itself (rows/gather.py).
"""
