"""Records the tensors of a run: the reference writes them, other runs compare them.

Lives here: writing.py, recorders.py, and the pairing of tensors of both runs.
Not here: the criterion (compare/), facts of what user code did (run/observe/).
"""
