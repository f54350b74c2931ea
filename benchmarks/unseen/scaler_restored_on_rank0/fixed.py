import torch
import torch.distributed as dist
from torch import nn

CHECKPOINT = {"scale": 4096.0, "growth_factor": 2.0, "backoff_factor": 0.5,
              "growth_interval": 2000, "_growth_tracker": 12}
scaler = None


def model():
    global scaler
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    scaler.load_state_dict(CHECKPOINT)
    torch.manual_seed(60)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def batch():
    g = torch.Generator().manual_seed(61)
    return torch.randn(16, 8, generator=g), torch.randint(0, 3, (16,), generator=g)


def loss(logits, y):
    return nn.functional.cross_entropy(logits, y)


def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    scaler.scale(loss(model(x), y)).backward()
    scaler.step(optimizer)
    scaler.update()
