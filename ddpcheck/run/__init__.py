"""(Target, RunSpec) -> what it recorded. All of it runs inside ranks.

jobs           the entry points that the engine calls by name
spec           which run, and what a rank says of it: plain data

reference      one process on the global batch, written to a trace
candidate      a rank's part of a run, compared with that trace
simulated      all ranks of a DDP run in one process, one after another

steps          the training loop, and what is recorded on the way
model          a model ready to train: dtype, batch norm, wrapper
batches        the global batch of every step; shards: a rank's part of it
user_code      hooks of the target: the same dtype, seeds and autocast in every run
surroundings   noise around a step; what is counted
batch_norm     local, sync and frozen batch norm
noise          random numbers as a function of the global sample; draws: one of them
rounding       the same mathematics with other rounding
sizing         how large a target's tensors are; finite: whether they are numbers
data_parallel  nn.DataParallel on the CPU
averaged       data parallelism by hand, without DDP's reducer
waiting        which parameters the reducer would wait for meanwhile

process/       what prepares a process: the target, its imports, its global state
record/        the numbers of a run: written, or compared with those written
watch/         facts: what user code did with its model, its group and its wrapper
fixes/         interventions; apply.py lists all by name, fix_names reads the names
virtual/       ranks that one process plays: their DDP, group and state

contents       modules and tensors that a model holds
names          one dotted name per parameter, wrapped or not
private        what torch does not document, and what is done without it
overrides      methods of torch in another form for the length of a run
submodules     modules in place of others
"""
