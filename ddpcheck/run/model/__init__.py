"""Prepares a model for training: built, cast, with its batch norm, wrapped.

Lives here: code that prepares a model, names its tensors, makes its noise comparable.
Not here: the training itself (run/steps.py, run/modes/).
"""
