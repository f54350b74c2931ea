import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class ArcFaceLoss(nn.Module):
    def __init__(self, classes=6, dim=8, margin=0.3, scale=8.0):
        super().__init__()
        self.W = nn.Parameter(torch.randn(classes, dim))
        self.margin, self.scale = margin, scale

    def forward(self, emb, labels):
        cos = F.normalize(emb, dim=1) @ F.normalize(self.W, dim=1).t()
        theta = cos.clamp(-0.999, 0.999).acos()
        onehot = F.one_hot(labels, cos.shape[1]).to(cos.dtype)
        return F.cross_entropy(self.scale * (theta + self.margin * onehot).cos(), labels)


criterion = None


def model():
    global criterion
    torch.manual_seed(9)
    net = nn.Sequential(nn.Linear(12, 16), nn.PReLU(), nn.Linear(16, 8))
    criterion = ArcFaceLoss()
    return net


def batch():
    g = torch.Generator().manual_seed(10)
    return torch.randn(16, 12, generator=g), torch.arange(16) // 3


def wrap(net):
    criterion.to(next(net.parameters()).dtype)
    return DDP(net)


def loss(emb, labels):
    criterion.to(emb.dtype)
    return criterion(emb, labels)


def optimizer(params):
    return torch.optim.SGD(list(params) + list(criterion.parameters()), lr=0.3)
