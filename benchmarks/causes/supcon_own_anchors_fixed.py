"""The fixed twin of supcon_own_anchors."""

import torch.distributed.nn.functional as dnn


def loss(output, target, temperature=0.2):
    z, y, offset = output, target, 0
    if dist.is_initialized():
        offset = dist.get_rank() * len(output)
        z = torch.cat(dnn.all_gather(output))
        y = torch.cat(gather_constant(target))
    logits = output @ z.T / temperature
    own = torch.arange(len(output))[:, None] + offset == torch.arange(len(z))[None]
    log_prob = logits - logits.masked_fill(own, float("-inf")).logsumexp(
        1, keepdim=True
    )
    positive = (target[:, None] == y[None]) & ~own
    return -((log_prob * positive).sum(1) / positive.sum(1)).mean()
