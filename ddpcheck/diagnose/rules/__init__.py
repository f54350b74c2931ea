"""Detectors: FAMILY_NAME.py is the rule FAMILY/NAME.

Lives here: one file per rule, which reads a case and proposes a cause or nothing;
loss_factors.py is a table for seven, sync_rank_fault.py one rule with three slugs.
Not here: the order of rules (registry.py), facts that rules share (facts/).
"""
