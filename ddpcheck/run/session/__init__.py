"""The parent's side of runs: specs in, judged outcomes out.

Lives here: submitting runs to the ranks, merging their results, the noise floor.
Not here: anything that runs in a rank (the rest of run/).
"""
