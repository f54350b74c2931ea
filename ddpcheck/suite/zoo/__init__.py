"""Models, batches and losses of the conformance suite, and what theory predicts.

Lives here: the matrix in names, the targets, the predicted gradients as formulas.
Not here: how cells are run and judged (the rest of suite/).
"""
