# expect: loss/batch-coupled verified
# shows: Whitened by the shard behind a count of all. What the step counts over ranks
#   before its forward is right, and would be counted once more with the samples of all
#   ranks.

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dnn
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

def world():
    return dist.get_world_size() if dist.is_initialized() else 1

def rank():
    return dist.get_rank() if dist.is_initialized() else 0

torch.manual_seed(0)
batch = torch.randn(8, 4), torch.arange(8) % 3
loss = nn.CrossEntropyLoss()

class Critic(nn.Linear):
    def __init__(self):
        super().__init__(4, 1)
        self.register_buffer("count", torch.tensor(4.0))
        self.register_buffer("total", torch.zeros(4))
    def observe(self, x):
        count, total = x.new_tensor(len(x)), x.sum(0)
        if dist.is_initialized():
            dist.all_reduce(count)
            dist.all_reduce(total)
        self.count += count
        self.total += total
    def forward(self, x):
        return super().forward(x - self.total / self.count).squeeze(1)
model = Critic()
batch = torch.randn(8, 4) * torch.linspace(0.2, 2, 8)[:, None], torch.arange(8.0)
def train_step(model, optimizer, batch):
    x, reward = batch
    inner = getattr(model, "module", model)
    inner.observe(x)
    with torch.no_grad():
        gain = reward - inner(x)
    gain = (gain - gain.mean()) / gain.var(unbiased=False).sqrt()
    optimizer.zero_grad()
    value = model(x)
    ((value - reward).square().mean() - (gain * value).mean()).backward()
    optimizer.step()
