"""Any divergence to its cause, proven by intervention, or an honest unknown.

engine         fix the first link, run again, go on until nothing diverges
case           all that is known of one divergent run, in the words rules ask in
proposal       a candidate cause, and the run that would prove it
registry       the rules, in the order of the chain
rules/         one rule, one file, one page
probes/        evidence, measured inside the ranks
findings       proposals and what their runs said, as the report's findings
data_parallel  which findings also explain nn.DataParallel's runs

Nothing is imported here: ranks import the probes alone, and 60 rules take them 0.2 s.
"""
