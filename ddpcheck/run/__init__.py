"""(Target, RunSpec) -> what it recorded. All of it runs inside ranks.

    spec           which run, and what a rank says of it: plain data
    jobs           the entry points that the engine calls by name
    model          a model ready to train: dtype, batch norm, wrapper
    steps          the training loop and what it records on the way
    names          one dotted name per parameter, wrapped or not
    data_parallel  nn.DataParallel on the CPU
    batch_norm     local, sync and frozen batch norm
    noise          random numbers as a function of the global sample
    observe        what the target did with torch.distributed and DDP
    isolation      global state of a rank, put back after each job
"""
