# expect: loss/local-normalizer verified
# shows: A near miss: targets are normalised by row, and only the weights divide.

import torch
from torch import nn

torch.manual_seed(0)

model = nn.Linear(8, 5)
batch = torch.randn(16, 8), (torch.randn(16, 5), torch.rand(16))
def loss(output, target):
    to, weights = target
    far = 1 - nn.functional.cosine_similarity(output, to, dim=1)
    return (far * weights).sum() / weights.sum()
