"""(Target, RunSpec) -> what it recorded. All of it runs inside ranks.

spec           which run, and what a rank says of it: plain data
jobs           the entry points that the engine calls by name
reference      one process on the global batch, written to a trace
candidate      a rank's part of a run, compared with that trace
simulated      all ranks of a DDP run in one process, one after another
virtual_group  the process group of such a run, which answers no collective
virtual_ddp    its DistributedDataParallel
virtual_state  what its ranks begin a step from
loading        the target, imported once
batches        the global batch of every step
surroundings   dtype, autocast and noise around a step
model          a model ready to train: dtype, batch norm, wrapper
steps          the training loop and what it records on the way
recorders      what happens to tensors: written, or compared
groups         their parts, a rank's rows of them, their sums
laid           a group of references as one, for many comparisons
sizing         how large a target's tensors are, and where records of them go
names          one dotted name per parameter, wrapped or not
others         optimizers that a training step has besides the one it is given
data_parallel  nn.DataParallel on the CPU
batch_norm     local, sync and frozen batch norm
noise          random numbers as a function of the global sample
averaged       data parallelism by hand, without DDP's reducer
fixes          interventions, applied to a run
observe        what the target did with torch.distributed and DDP
isolation      global state of a rank, put back after each job
fingerprint    what the user's modules keep, which would reach the next job
private        what torch does not document, and what is done without it
"""
