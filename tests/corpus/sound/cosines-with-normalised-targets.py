# expect: equivalent
# shows: Each row has its own norm, and the loss is a mean over rows.

import torch
from torch import nn

torch.manual_seed(0)

model = nn.Linear(4, 5)
batch = torch.randn(8, 4), torch.randn(8, 5)
def loss(output, target):
    rows = nn.functional.normalize(output, dim=1)
    return 1 - (rows * nn.functional.normalize(target, dim=1)).sum(1).mean()
