"""Models, losses and batches of the conformance suite, and what theory predicts.

matrix       the cells, and what theory says of each
models       the models; batches, losses: their data and losses
cases        both together, as targets
predict      the gradients that theory predicts; closed_form: as formulas
entries      outputs and targets of any layout as one row per entry
record       predicted trainings as traces: the suite's own jobs
"""
