"""Ranks that one process plays one after another.

Lives here: their DistributedDataParallel, process group and state.
Not here: the run that uses them (simulated.py).
"""
