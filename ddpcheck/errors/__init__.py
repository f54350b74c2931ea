"""Errors in words: usage errors, exceptions of user code, stacks.

Lives here: what describes an error, and where the code that raised it comes from.
Not here: exit codes (checking/exits.py), pages of errors (report/pages/).
"""
