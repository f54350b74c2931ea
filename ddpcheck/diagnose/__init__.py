"""Any divergence to its cause, proven by intervention, or an honest unknown.

engine         from divergent runs to findings: one search per kind of divergence
search/        fix the first link, run again, go on until nothing diverges
rules/         what is searched for: one rule, one file, one page
registry       all rules, in the order in which they are asked
proposal       what a rule says: a candidate cause, and the run that would prove it
facts/         what rules ask of a run
probes/        what measures it, inside the ranks

shrink         the smallest batch, model and number of steps that still show it
simulated      divergences of simulated ranks, found on real ones
data_parallel  what nn.DataParallel shares with DDP, and what it has alone
without_group  what its replicas lack: a process group to ask

Nothing is imported here: ranks import the probes alone, and all rules take them 0.2 s.
"""
