"""What ranks execute: the reference, a candidate, simulated ranks.

Lives here: these jobs, and the batches and shards they train on.
Not here: the modes and their fields, which import no torch (run/modes/).
"""
