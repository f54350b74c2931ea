"""Probes: one step, recorded in the single process and compared inside every rank.

Lives here: reference.py and rank.py, the two probes; evidence.py, what they return.
Not here: any judgement. Causes are named in rules/ and facts/.
"""
