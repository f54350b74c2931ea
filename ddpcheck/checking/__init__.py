"""Target -> plan -> runs -> compare -> diagnose -> Report.

Lives here: one whole check (checking.py), what it plans, accepts and warns of.
Not here: how runs are made (run/), judged (run/session/) and explained (diagnose/).
"""
