"""What a fix would do, applied in the ranks to a run; never to the user's file.

Lives here: apply.py, which applies all interventions; a file or folder per kind.
Not here: the list of them (run/intervention.py), and which cause asks for which.
"""
