import torch
from torch import nn

NOISE_MULTIPLIER, MAX_GRAD_NORM = 0.5, 1.0
noise_generator = None


def model():
    global noise_generator
    noise_generator = torch.Generator().manual_seed(300)
    torch.manual_seed(300)
    return nn.Sequential(nn.Linear(9, 12), nn.Tanh(), nn.Linear(12, 2))


def batch():
    g = torch.Generator().manual_seed(301)
    return torch.randn(16, 9, generator=g), torch.randint(0, 2, (16,), generator=g)


def loss(logits, y):
    return nn.functional.cross_entropy(logits, y)


def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    loss(model(x), y).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
    for p in model.parameters():
        noise = torch.randn(p.shape, generator=noise_generator).to(p.dtype)
        p.grad.add_(noise, alpha=NOISE_MULTIPLIER * MAX_GRAD_NORM / 16)
    optimizer.step()
