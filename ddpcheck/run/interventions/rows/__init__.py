"""Interventions that compute on the rows of all ranks, as on the global batch.

Lives here: gather.py, the gather with gradients, and a file per idea that uses it.
Not here: the target's own collectives (collectives/), its data loaders (sharding.py).
"""
