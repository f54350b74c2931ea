# expect: loss/sum-reduction verified, loss/embedding-frequency verified
# shows: Sum beside an embedding by frequency. The embedding's gradient does not grow
#   with the batch, that of the layer does.

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

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(3, 4, scale_grad_by_freq=True)
        self.out = nn.Linear(4, 3)
    def forward(self, word):
        return self.out(self.words(word))
model = Words()
batch = torch.tensor([0, 0, 0, 1, 1, 2, 2, 0]), batch[1]
loss = nn.CrossEntropyLoss(reduction="sum")
