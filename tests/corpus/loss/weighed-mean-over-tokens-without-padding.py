# expect: loss/local-normalizer verified
# shows: Weighed mean over tokens without padding: the loss is divided by a
#   data-dependent count of the shard.

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

class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(9, 5), nn.Linear(5, 9)
    def forward(self, ids, lengths):
        return self.head(torch.tanh(self.words(ids[held(ids, lengths)])))
def held(ids, lengths):
    return torch.arange(ids.shape[1]) < lengths[:, None]
def model():
    torch.manual_seed(0)
    return Tokens()
ids, lengths = torch.randint(0, 9, (8, 6)), torch.tensor([1, 5, 2, 3, 1, 2, 1, 1])
batch = (ids[:, :-1], lengths), (ids[:, 1:], lengths)

def loss(output, target):
    ids, lengths = target
    weight = torch.linspace(0.5, 3, 9, dtype=output.dtype)
    return nn.functional.cross_entropy(output, ids[held(ids, lengths)], weight)
