"""Substitute: a rank gets the single-process values at a boundary.

Lives here: recording and substituting each boundary (substitutes.py applies them).
Not here: the boundaries' names (run/intervention.py).
"""
