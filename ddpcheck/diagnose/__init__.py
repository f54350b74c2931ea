"""Any divergence to its cause, proven by intervention, or an honest unknown.

How a cause is searched for:
engine         from divergent runs to findings: one search per kind of divergence
search         fix the first link, run again, go on until nothing diverges
causes         what rules propose, and what a run with a fix says of one
fallbacks      what a rule falls back on where its own fix does not mend the run
trials         runs with the interventions of proposals, and what is left then
side_effects   buffers that are wrong by a fix alone
two            two causes, one looked at where the other is fixed
choosing       which fix says more, and what several say together
parts          a loss that is wrong in several ways, output by output
addends        the same, addend by addend of what it sums
shrink         the smallest batch, model and number of steps that still show it
findings       causes and what their runs said, as the report's findings
magnitude      how much a divergence matters, in words a user can act on

What rules are:
registry       all of them, in the order in which they are asked
rules/         one rule, one file, one page
proposal       what a rule says: a candidate cause, and the run that would prove it

What rules ask:
case           all that is known of one divergent run
probing        the evidence of one run, from probes/, which measure it inside the ranks
loss, events, buffers, rows, other_rows, unused, faults, shares, unlike_numbers,
kept_beside, updates_apart
               facts that several rules share, by subject
fitted         modules that are fitted to the shard before their call
read_at_once   buffers that are written from the shard and read in the same step
injected       gradients that backward adds of its own, and what they lack
rank_table     what every rank of a faulty run did last
text           numbers and names as facts show them
combination    of what vectors another one is made

Beside the rules:
rank_fault     faults that no rule explains, as what they are
hidden         a cause that the fix of another one hides
last           what is tried where nothing else explains a run
hook_weights   communication hooks that weigh the ranks
update_alone   what differs where every update has the right gradients
simulated      divergences of simulated ranks, found on real ones
data_parallel, data_parallel_case
               what nn.DataParallel shares with DDP, and what it has alone
without_group  what its replicas lack: a process group to ask

Nothing is imported here: ranks import the probes alone, and all rules take them 0.2 s.
"""
