# expect: loss/local-normalizer verified
# shows: Sizes of others behind a softmax. Behind a softmax inside the network, yet no
#   share of tokens: sizes of graphs.

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
        self.score, self.head = nn.Linear(4, 3), nn.Linear(3, 3)
    def forward(self, x):
        scores = self.score(x)
        return self.head(scores.softmax(-1).mean(1)), scores
model = Net()
size = torch.tensor([1.0, 2, 5, 3, 4, 5, 1, 2])
batch = torch.randn(8, 5, 4), (torch.arange(8) % 3, size)
def loss(output, target):
    logits, scores = output
    label, size = target
    purity = scores.softmax(-1).square().sum((1, 2)).mean() * (1 / size).mean()
    return nn.functional.cross_entropy(logits, label) + purity
