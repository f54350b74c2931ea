# expect: loss/local-normalizer verified
# shows: Longest of the shard behind packed sequences. What packs sequences hands on
#   orders and counts of its own rows.

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
        self.rnn, self.out = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)
    def forward(self, x, length):
        pack = nn.utils.rnn.pack_padded_sequence
        packed = pack(x, length, batch_first=True, enforce_sorted=False)
        hidden, _ = self.rnn(packed)
        return self.out(nn.utils.rnn.pad_packed_sequence(hidden, True, 0.0, 6)[0])
model = Net()
length = torch.tensor([2, 4, 1, 3, 6, 5, 2, 6])
batch = (torch.randn(8, 6, 3), length), (torch.randint(0, 2, (8, 6)), length)
def loss(output, target):
    label, length = target
    each = nn.functional.cross_entropy(output.mT, label, reduction="none")
    inside = torch.arange(6) < length[:, None]
    return (each * inside).sum() / (len(label) * length.max())
