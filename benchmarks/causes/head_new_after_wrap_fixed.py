"""The fixed twin of head_new_after_wrap."""


def wrap(model):
    ddp = DDP(model)
    return ddp
