# expect: forward/batch-coupled verified
# shows: Padding of the shard behind packed rows. The forward pads to its longest; what
#   packs rows has orders of its own.

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
        self.rnn, self.out = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 3)
    def forward(self, x, length):
        pack = nn.utils.rnn.pack_padded_sequence
        packed = self.rnn(pack(x, length, batch_first=True, enforce_sorted=False))[0]
        hidden = nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)[0]
        return self.out(hidden).mean(1)
model = Net()
length = torch.tensor([2, 4, 1, 3, 5, 5, 2, 6])
batch = (torch.randn(8, 6, 3), length), torch.arange(8) % 3
