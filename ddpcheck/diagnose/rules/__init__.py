"""Detectors: FAMILY_NAME.py is the rule FAMILY/NAME; two files have several slugs.

Lives here: one file per rule, which reads a case and proposes a cause or nothing.
Not here: the order of rules (registry.py), facts that rules share (facts/).
"""
