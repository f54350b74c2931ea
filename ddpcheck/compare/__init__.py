"""Tensors against tensors: the one definition of `excess`, its tolerance, traces.

Lives here: what needs two sets of numbers and nothing of how they came about.
Not here: which run is compared with which (run/session/).
"""
