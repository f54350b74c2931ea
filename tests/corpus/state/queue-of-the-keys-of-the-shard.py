# expect: state/buffer-broadcast-overwrites verified
# shows: Queue of the keys of the shard. Rows of samples are written into a buffer: no
#   statistic of them, and no mean over ranks, is what one process writes.

import torch
from torch import nn

torch.manual_seed(0)
batch = torch.randn(8, 4), torch.zeros(8, dtype=torch.long)
loss = nn.CrossEntropyLoss()

class Contrast(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(4, 3)
        self.register_buffer("queue", torch.randn(16, 3))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))
    @torch.no_grad()
    def enqueue(self, keys):
        start = int(self.place)
        self.queue[start : start + len(keys)] = keys
        self.place[0] = (start + len(keys)) % len(self.queue)
    def forward(self, x):
        keys = x[:, :3].tanh()
        query = self.query(x)
        like = (query * keys).sum(1, keepdim=True)
        logits = torch.cat([like, query @ self.queue.clone().T], 1)
        self.enqueue(keys)
        return logits
model = Contrast()
