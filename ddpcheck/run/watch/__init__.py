"""Facts of a run: what user code did with its model, its group and its wrapper."""
