"""Pure functions of a `Report`, which import no torch.

Lives here: a file per format, and the words and numbers that all formats share.
Not here: where the text goes (report/output.py).
"""
