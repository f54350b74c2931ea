# expect: sync/clip-before-reduce verified
# shows: Clipped within no_sync in every micro-batch, so the first is clipped by its local
#   gradient. With every backward reduced, the clipping has means as well.

import contextlib
import torch
from torch import nn

torch.manual_seed(0)
batch = torch.randn(8, 4), torch.arange(8) % 3
loss = nn.CrossEntropyLoss()
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    for first in (0, 1):
        x, y = batch[0][first::2], batch[1][first::2]
        is_local = not first and hasattr(model, "no_sync")
        with model.no_sync() if is_local else contextlib.nullcontext():
            (nn.functional.cross_entropy(model(x), y) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
