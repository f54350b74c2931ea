from contextlib import nullcontext

import torch
from torch import nn

ACCUM_GRAD = 2


class Encoder(nn.Module):
    def __init__(self, mel=20, hidden=24, vocab=12):
        super().__init__()
        self.conv = nn.Conv1d(mel, hidden, 3, padding=1)
        self.norm = nn.LayerNorm(hidden)
        self.out = nn.Linear(hidden, vocab)

    def forward(self, speech):
        x = self.conv(speech.transpose(1, 2)).transpose(1, 2)
        return self.out(torch.relu(self.norm(x)).mean(1))


def model():
    torch.manual_seed(3)
    return Encoder()


def batch():
    g = torch.Generator().manual_seed(5)
    return torch.randn(16, 9, 20, generator=g), torch.randint(0, 12, (16,), generator=g)


def loss(logits, token):
    return nn.functional.cross_entropy(logits, token)


def train_step(model, optimizer, batch):
    speech, token = batch
    optimizer.zero_grad()
    micro = zip(speech.chunk(ACCUM_GRAD), token.chunk(ACCUM_GRAD))
    for batch_idx, (s, t) in enumerate(micro):
        last = batch_idx % ACCUM_GRAD == 0
        my_context = nullcontext if last or not hasattr(model, "no_sync") else model.no_sync
        with my_context():
            (loss(model(s), t) / ACCUM_GRAD).backward()
    optimizer.step()
