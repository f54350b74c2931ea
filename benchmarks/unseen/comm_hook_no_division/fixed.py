import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def model():
    torch.manual_seed(180)
    return nn.Sequential(nn.Conv1d(4, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6, 3))


def batch():
    g = torch.Generator().manual_seed(181)
    return torch.randn(16, 4, 8, generator=g), torch.randint(0, 3, (16,), generator=g)


def loss(logits, y):
    return nn.functional.cross_entropy(logits, y)


def timing_hook(state, bucket):
    state["bytes"] += bucket.buffer().numel() * bucket.buffer().element_size()
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda fut: fut.value()[0].div_(dist.get_world_size()))


def wrap(net):
    ddp = DDP(net)
    ddp.register_comm_hook({"bytes": 0}, timing_hook)
    return ddp
