"""The kinds of fixes that a file can make, a module per family.

Each adds to a draft what an intervention does in the ranks, in plain torch. The check
of the file decides whether it is the same, so a kind may assume what is usual.

Lives here: choose.py, which asks every family for each fix; the families.
Not here: the text of the file (fixed/draft.py), its check (fixed/check.py).
"""
