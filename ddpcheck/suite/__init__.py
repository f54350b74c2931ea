"""The conformance matrix: `ddpcheck --suite`.

Lives here: its cells, how they run and are judged, its table; zoo/ has its models.
Not here: anything that a check of a user's target needs.
"""
