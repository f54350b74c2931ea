# expect: state/buffer-broadcast-overwrites verified, loss/batch-coupled verified
# shows: Frequencies that a model writes and reads. The model writes counts of the shard
#   and reads them at once; its loss is coupled.

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

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.register_buffer("seen", torch.ones(5))
    def forward(self, item):
        if self.training:
            counts = torch.bincount(item, minlength=5)
            self.seen.mul_(0.7).add_(counts)
        return self.embed(item), torch.log(self.seen / self.seen.sum())[item]
model = Net()
batch = torch.tensor([0, 1, 1, 2, 3, 4, 4, 4]), torch.ones(8)
def loss(output, weight):
    rows, log_share = output
    logits = rows @ rows.T - log_share[None]
    labels = torch.arange(len(rows))
    each = nn.functional.cross_entropy(logits, labels, reduction="none")
    return (weight * each).mean()
