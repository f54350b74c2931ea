"""The numbers of a run: written by the reference, compared by the others."""
