# expect: loss/local-normalizer verified
# shows: A near miss: real targets decide the class, and the classes are counted.

import torch
from torch import nn

torch.manual_seed(0)

model = nn.Linear(8, 3)
batch = torch.randn(16, 8), torch.randn(16, 3).softmax(1)
def loss(output, target):
    classes = target.argmax(1)
    weight = 1 / (1 + classes.bincount(minlength=3))
    return nn.functional.cross_entropy(output, classes, weight)
