"""A model ready to train: built, in its dtype, with its batch norm, wrapped.

Lives here: what prepares a model, names its tensors, and makes its noise comparable.
Not here: what trains it (run/steps.py, run/modes/).
"""
