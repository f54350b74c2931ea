# expect: loss/local-normalizer verified
# shows: Summed ctc over the characters of a shard. Lengths are an output too: they
#   follow the samples where those change places.

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

class Net(nn.Linear):
    def forward(self, x, lengths):
        return super().forward(x), lengths // 2
model = Net(4, 5)
lengths = torch.tensor([1, 2, 1, 2, 3, 3, 2, 3])
text = torch.randint(1, 5, (8, 3)) * (torch.arange(3) < lengths[:, None])
batch = (torch.randn(8, 9, 4), torch.randint(16, 19, (8,))), (text, lengths)
def loss(output, target):
    (rows, steps), (text, lengths) = output, target
    rows = rows.transpose(0, 1).log_softmax(2)
    total = nn.functional.ctc_loss(rows, text, steps, lengths, reduction="sum")
    return total / lengths.sum()
