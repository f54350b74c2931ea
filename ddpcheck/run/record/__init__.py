"""The tensors of a run: written by the reference, compared by the others.

Lives here: recorders.py, and what decides which tensor stands for which.
Not here: the criterion (compare/), facts of what user code did (run/observe/).
"""
