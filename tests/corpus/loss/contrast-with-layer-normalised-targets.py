# expect: loss/batch-coupled verified
# shows: The rows of a frozen tower are normalised, so a shift and a scale change nothing.

import torch
from torch import nn

torch.manual_seed(0)

model = nn.Linear(8, 5)
batch = torch.randn(16, 8), torch.randn(16, 5)
def loss(output, target):
    columns = nn.functional.layer_norm(target, (5,))
    return nn.functional.cross_entropy(output @ columns.T, torch.arange(len(output)))
