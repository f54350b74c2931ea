# expect: data/batch-layout verified
# shows: Groups at a stride beside a count of all. Four answers to a question stand two
#   apart, rewards relate them; what the ranks exchange, the number of words, is right.

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

model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
words = torch.tensor([4, 3, 4, 2, 1, 1, 2, 1])
reward = torch.tensor([0.3, 2.0, -1.0, 0.5, 1.5, -0.2, 3.0, 0.9])
batch = torch.randn(8, 5, 4), (torch.arange(5) < words[:, None], reward)
def train_step(model, optimizer, batch):
    x, (mask, reward) = batch
    group = reward.view(4, -1)
    gain = ((group - group.mean(0)) / (group.std(0) + 1e-4)).flatten()
    count = mask.sum()
    if dist.is_initialized():
        dist.all_reduce(count)
    optimizer.zero_grad()
    score = model(x).log_softmax(-1)[..., 0] * gain[:, None]
    (-(score * mask).sum() * world() / count).backward()
    optimizer.step()
