"""The data verdict of a script: what its ranks drew, against the single process.

Lives here: streams.py (events to passes), judge.py (findings), table.py (facts).
Not here: the recording of events (run/script/), the check (checking/scripts.py).
"""
