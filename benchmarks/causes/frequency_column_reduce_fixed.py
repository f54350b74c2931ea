"""The fixed twin of frequency_column_reduce."""


def loss(output, target):
    counts = F.one_hot(target, CLASSES).sum(0).to(output.dtype)
    scale = 1
    if dist.is_initialized():
        dist.all_reduce(counts)
        scale = dist.get_world_size()
    errors = F.cross_entropy(output, target, reduction="none")
    return scale * (errors / counts.clamp(min=1)[target]).sum() / CLASSES
