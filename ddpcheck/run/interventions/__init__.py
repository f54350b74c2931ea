"""What a fix would do, applied in the ranks to a run; never to the user's file.

Lives here: apply.py, which lists all interventions, and a file per kind of them.
Not here: which intervention is tried for which cause (diagnose/rules/).
"""
