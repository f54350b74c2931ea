"""How a run trains: one object for each mode, listed in registry.py.

Lives here: a file per mode, and what the modes' fields refer to; jobs/ runs in ranks.
Not here: the training loop that all share (run/steps.py).
"""
