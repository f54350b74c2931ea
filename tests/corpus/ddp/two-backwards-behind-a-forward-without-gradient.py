# expect: ddp/multi-backward verified
# shows: Two backwards behind a forward without gradient. A forward without gradient
#   waits for no backward.

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dnn
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

def world():
    return dist.get_world_size() if dist.is_initialized() else 1

def rank():
    return dist.get_rank() if dist.is_initialized() else 0

torch.manual_seed(0)
batch = torch.randn(8, 4), torch.arange(8) % 3
loss = nn.CrossEntropyLoss()

class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)
        self.heat = nn.Parameter(torch.tensor(-1.0))
    def forward(self, x):
        return self.body(x).tanh(), self.heat
class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = Actor(), nn.Linear(7, 2)
        
model = Agent()
weight = torch.tensor([1.0, 3.0, 2.0, 0.5, 4.0, 1.0, 2.5, 3.5])
batch = torch.randn(8, 4) * torch.linspace(0.3, 2, 8)[:, None], weight
def wrap(agent):
    agent.actor, agent.critic = DDP(agent.actor), DDP(agent.critic)
    return agent
def clip(parameters):
    found = [p for p in parameters if p.grad is not None]
    size = sum(p.grad.square().sum() for p in found).sqrt()
    for p in found:
        p.grad.mul_((0.05 / (size + 1e-6)).clamp(max=1))
def train_step(agent, optimizer, batch):
    x, weight = batch
    with torch.no_grad():
        act, heat = agent.actor(x)
        back = x.mean(1) - heat.exp() * act.square().sum(1)
    optimizer.zero_grad()
    first, second = agent.critic(torch.cat([x, act], 1)).unbind(1)
    (first - back).square().mean().backward(retain_graph=True)
    (second - back).square().mean().backward()
    clip(agent.parameters())
    optimizer.step()
    optimizer.zero_grad()
    act, heat = agent.actor(x)
    agent.critic.requires_grad_(False)
    inner = getattr(agent.critic, "module", agent.critic)
    gain = inner(torch.cat([x, act], 1)).amin(1).mean()
    agent.critic.requires_grad_(True)
    cost = act.square().sum(1)
    cost, heated = heat.detach().exp() * cost.mean(), heat * (cost.detach() - 4).mean()
    (cost - gain + heated).backward()
    clip(agent.parameters())
    optimizer.step()
