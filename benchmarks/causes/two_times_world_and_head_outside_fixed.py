"""The fixed twin of two_times_world_and_head_outside."""


def wrap(model):
    return DDP(model)


def loss(output, target):
    value = F.cross_entropy(output, target)
    return value
