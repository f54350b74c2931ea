import os, signal, time
import torch
import torch.distributed as dist
from torch import nn
torch.manual_seed(0)
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.arange(8) % 3
loss = nn.CrossEntropyLoss()
class Last(nn.Linear):
    def forward(self, x):
        if dist.is_initialized() and dist.get_rank() == dist.get_world_size() - 1:
            {"raise": lambda: 1 / 0, "os._exit": lambda: os._exit(7),
             "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
             "hang": lambda: time.sleep(600)}["kill"]()
        return super().forward(x)
model = Last(4, 3)
