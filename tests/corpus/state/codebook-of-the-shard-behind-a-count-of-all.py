# expect: state/buffer-broadcast-overwrites verified, loss/missing-world-scale verified
# shows: Codebook of the shard behind a count of all. One fix of the whole loss would
#   mend both.

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

class Codes(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.randn(3, 4))
    def forward(self, x):
        code = self.codes[torch.cdist(x.detach(), self.codes).argmin(1)]
        if self.training:
            self.codes.lerp_(x.detach().mean(0), 0.3)
        return code
class Codec(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 4), nn.Linear(4, 4)
        self.codes = Codes()
    def forward(self, x):
        z = self.encoder(x)
        code = self.codes(z)
        commit = (z - code.detach()).square().mean()
        return self.decoder(z + (code - z).detach()), commit
model = Codec()
batch = torch.randn(8, 4), (torch.randn(8, 4), torch.tensor([1.0, 1, 1, 1, 0, 1, 0, 0]))
def loss(output, target):
    (made, commit), (wanted, valid) = output, target
    count = valid.sum()
    if dist.is_initialized():
        dist.all_reduce(count)
    return ((made - wanted).abs().mean(1) * valid).sum() / count + 0.25 * commit
