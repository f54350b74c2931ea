"""The fixed twin of two_minibatch_and_reduced."""

import torch.distributed as dist


import torch.distributed.nn.functional as dnn


class RelativeScorer(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.embed = nn.Sequential(
            nn.Linear(7, width), nn.GELU(), nn.Linear(width, width)
        )
        self.score = nn.Sequential(
            nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, 1)
        )

    def forward(self, x):
        z = self.embed(x)
        centre = z.mean(0, keepdim=True)
        if dist.is_initialized():
            centre = dnn.all_reduce(centre) / dist.get_world_size()
        return self.score(torch.cat([z, (z - centre).abs()], 1)).squeeze(1)


def loss(output, target):
    return F.binary_cross_entropy_with_logits(output, target)
