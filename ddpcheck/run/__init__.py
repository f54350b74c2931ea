"""(Target, RunSpec) -> what it recorded: everything that trains, inside the ranks.

Lives here: modes/, the training loop (steps.py), record/, observe/, interventions/.
Not here: processes and deadlines (ranks/), causes (diagnose/).
"""
