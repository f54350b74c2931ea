"""How a run trains: one process, DDP, DataParallel, simulated ranks.

Lives here: a file per way to run a target, and the batches and shards they train on.
Not here: the training loop that all share (run/steps.py).
"""
