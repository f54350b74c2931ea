"""Facts of a run: what user code did with its model, process group and wrapper.

Lives here: observing calls, collectives, hooks and state while a run trains.
Not here: the tensors that are compared (run/record/), any judgement (diagnose/).
"""
