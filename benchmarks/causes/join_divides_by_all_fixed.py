"""The fixed twin of join_divides_by_all."""


def uneven(model):
    if isinstance(model, DistributedDataParallel):
        return model.join(divide_by_initial_world_size=False)
    return nullcontext()
