"""What is checked and how: the target file, its settings, its way into the ranks.

Lives here: the contract of a target file, the table of settings, built-in losses.
Not here: the training of a target (run/).
"""
