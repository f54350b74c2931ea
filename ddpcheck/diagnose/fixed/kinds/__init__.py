"""The kinds of fixes that a file can make, in plain torch: a module per family.

Lives here: choose.py, which asks every family for each fix; family.py; the families.
Not here: the text of the file (fixed/draft.py), its check (fixed/check.py).
"""
