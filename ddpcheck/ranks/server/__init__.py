"""The fork server, which imports the target once and forks every rank.

Lives here: the server process, its imports, what user code leaves in a process.
Not here: rank processes at work (ranks/worker.py, ranks/crew.py).
"""
