"""Facts of a run: what user code did with its model, its group and its wrapper.

Lives here: what watches calls, collectives, hooks and state while a run trains.
Not here: the tensors that are compared (run/record/), any judgement (diagnose/).
"""
