"""The fixed twin of saint_rows."""

import torch.distributed as dist


import torch.distributed.nn.functional as dnn


class RowAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.q, self.kv, self.out = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, width),
        )

    def forward(self, x):
        rows = self.norm(x.flatten(1))
        kv = self.kv(rows)
        if dist.is_initialized():
            kv = torch.cat(dnn.all_gather(kv))
        k, v = kv.chunk(2, 1)
        weight = (self.q(rows) @ k.T / k.shape[1] ** 0.5).softmax(-1)
        return x + self.out(weight @ v).view_as(x)
