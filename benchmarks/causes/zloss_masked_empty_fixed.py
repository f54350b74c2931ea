"""The fixed twin of zloss_masked_empty."""


def loss(output, target):
    mask = (target != -100).to(output.dtype)
    ce = F.cross_entropy(
        output.flatten(0, 1), target.flatten(), ignore_index=-100, reduction="none"
    ).view_as(mask)
    z = output.logsumexp(-1).pow(2)
    count = mask.sum()
    if dist.is_initialized():
        dist.all_reduce(count)
        count = count / world()
    return ((ce + 1e-3 * z) * mask).sum() / count
