"""The fixed twin of looped_transformer."""

REENTRANT = False
