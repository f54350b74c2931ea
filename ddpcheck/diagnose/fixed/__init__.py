"""fixed.py: the user's target with its fix in plain torch, and the check of it.

Lives here: the text of the file, one function per kind of fix, and what runs it.
Not here: the search for the causes (search/), how the file is shown (report/).
"""
