import torch
import torch.distributed as dist
from torch import nn

VOCAB, EPOCH_TOKENS = 32, 1200


class TinyLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(VOCAB, 16)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.lm_head = nn.Linear(16, VOCAB, bias=False)

    def forward(self, ids):
        h = self.wte(ids)
        return self.lm_head(h + self.mlp(h))


def model():
    torch.manual_seed(42)
    return TinyLM()


def batch():
    g = torch.Generator().manual_seed(7)
    ids = torch.randint(1, VOCAB, (16, 13), generator=g)
    num_tokens = torch.arange(16) * 3 % 10 + torch.arange(16) // 4 * 2 + 2
    return ids[:, :-1], num_tokens, ids[:, 1:]


def loss(logits, targets):
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def optimizer(params):
    return torch.optim.AdamW(params, lr=0.02, weight_decay=0.01)


def get_lr_multiplier(progress):
    return max(0.0, 1.0 - progress)


def train_step(model, optimizer, batch):
    ids, num_tokens, targets = batch
    world = dist.get_world_size() if dist.is_initialized() else 1
    group = optimizer.param_groups[0]
    consumed = num_tokens.sum()
    if world > 1:
        dist.all_reduce(consumed)
    group["seen"] = group.get("seen", 0) + int(consumed)
    progress = group["seen"] / EPOCH_TOKENS
    group["lr"] = 0.02 * get_lr_multiplier(progress)
    optimizer.zero_grad(set_to_none=True)
    out = loss(model(ids), targets)
    out.backward()
    optimizer.step()
    return out.detach()
