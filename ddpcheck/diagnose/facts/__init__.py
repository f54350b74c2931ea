"""What rules ask of a divergent run. Nothing here runs anything but `probing`.

case           all that is known of one divergent run
probing        the evidence of one run, from ../probes, which measure it in the ranks
loss, events, buffers, rows, other_rows, unused, faults, shares, unlike_numbers,
kept_beside, updates_apart
               facts that several rules share, by subject
fitted         modules that are fitted to the shard before their call
read_at_once   buffers that are written from the shard and read in the same step
injected       gradients that backward adds of its own, and what they lack
rank_fault     faults that no rule explains, as what they are
rank_table     what every rank of a faulty run did last
data_parallel_case
               of what nn.DataParallel raised
text           numbers and names as facts show them
combination    of what vectors another one is made
"""
