"""The rank engine: runs functions in sets of processes, every wait with a deadline.

Lives here: the pool, crews and ranks; the fork server; ranks of other machines.
Not here: anything about gradients or models (run/).
"""
