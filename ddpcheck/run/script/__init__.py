"""Runs a training script as it is, stopped at every update, as a target.

Lives here: how a script is started, where it is stopped, what its loaders yield.
Not here: the verdict on its data (diagnose/), the check of a script (checking/).
"""
