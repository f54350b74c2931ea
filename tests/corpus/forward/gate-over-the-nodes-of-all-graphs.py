# expect: forward/batch-coupled verified
# shows: Gate over the nodes of all graphs. Nodes compete with those of all graphs; a
#   graph's number is one within the shard.

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

class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, 1)
    def forward(self, rows, graph, n):
        share = self.gate(rows).softmax(0) * n
        return rows.new_zeros(n, 6).index_add(0, graph, share * rows)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.pool, self.head = nn.Linear(4, 6), Pool(), nn.Linear(6, 3)
    def forward(self, data):
        rows = self.body(data.nodes).tanh()
        return self.head(self.pool(rows, data.graph, data.n))
model = Net()

sizes = torch.tensor([3, 2, 4, 2, 5, 3, 4, 5])
batch = (torch.randn(8, 5, 4), sizes), torch.arange(8) % 3
class Graphs:
    def __init__(self, x, sizes):
        self.nodes = x[torch.arange(5) < sizes[:, None]]
        self.graph = torch.arange(len(x)).repeat_interleave(sizes)
        self.n = len(x)
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss(model(Graphs(*batch[0])), batch[1]).backward()
    optimizer.step()
