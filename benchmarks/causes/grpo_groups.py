# expect: data/batch-layout
"""GRPO: group-relative advantages of sampled completions, token level policy gradient."""

import torch
import torch.nn.functional as F
from torch import nn

PROMPTS, COMPLETIONS = 4, 4


class Policy(nn.Module):
    def __init__(self, vocabulary=16, width=12):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rnn = nn.GRU(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return F.log_softmax(self.head(self.rnn(self.embed(tokens))[0]), -1)


def model():
    torch.manual_seed(0)
    return Policy()


def batch(step):
    g = torch.Generator().manual_seed(70 + step)
    prompt = torch.randint(0, 16, (PROMPTS, 3), generator=g)
    answer = torch.randint(0, 16, (COMPLETIONS, PROMPTS, 5), generator=g)
    reward = torch.randn(COMPLETIONS, PROMPTS, generator=g) + torch.arange(PROMPTS)
    tokens = torch.cat([prompt.expand(COMPLETIONS, -1, -1), answer], -1)
    return {"tokens": tokens.flatten(0, 1), "reward": reward.flatten()}


def advantages(reward):
    group = reward.view(COMPLETIONS, -1)
    return ((group - group.mean(0)) / (group.std(0) + 1e-4)).flatten()


def train_step(model, optimizer, batch):
    tokens = batch["tokens"]
    log_prob = model(tokens[:, :-1]).gather(-1, tokens[:, 1:, None]).squeeze(-1)[:, 2:]
    ratio = (log_prob - log_prob.detach()).exp()
    advantage = advantages(batch["reward"])[:, None]
    total = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    optimizer.zero_grad()
    total.backward()
    optimizer.step()


def optimizer(params):
    return torch.optim.SGD(params, lr=0.5, momentum=0.9)
