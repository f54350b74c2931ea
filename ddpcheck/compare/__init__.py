"""Compares tensors: the one definition of `excess`, its tolerance, traces.

Lives here: code that needs two sets of numbers, and not how they were computed.
Not here: which run is compared with which (run/session/).
"""
