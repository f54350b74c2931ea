"""How a run trains: one object for each mode, listed in registry.py.

Lives here: a file per mode, what its ranks do, the batches and shards they train on.
Not here: the training loop that all share (run/steps.py).
"""
