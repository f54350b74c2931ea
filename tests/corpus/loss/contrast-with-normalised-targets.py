# expect: loss/batch-coupled verified
# shows: The other tower is frozen: its rows are targets, and only their direction counts.

import torch
from torch import nn

torch.manual_seed(0)

model = nn.Linear(8, 5)
batch = torch.randn(16, 8), torch.randn(16, 5)
def loss(output, target):
    rows = nn.functional.normalize(output, dim=1)
    columns = nn.functional.normalize(target, dim=1)
    return nn.functional.cross_entropy(rows @ columns.T / 0.1, torch.arange(len(rows)))
