import torch
from torch import nn


class UNetish(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(1, 6, 3, padding=1)
        self.up = nn.Conv2d(6, 2, 3, padding=1)

    def forward(self, scan):
        return self.up(torch.relu(self.down(scan)))


def model():
    torch.manual_seed(130)
    return UNetish()


def batch():
    g = torch.Generator().manual_seed(131)
    scan = torch.randn(16, 1, 8, 8, generator=g)
    size = torch.arange(16).view(16, 1, 1) / 15 * 1.5 - 1.2
    mask = (scan[:, 0] < size).long()
    return scan, mask


class DiceLoss(nn.Module):
    def __init__(self, smooth=1.0):
        super().__init__()
        self.smooth = smooth

    def forward(self, logits, mask):
        bs, num_classes = logits.shape[:2]
        prob = logits.softmax(1).view(bs, num_classes, -1)
        onehot = nn.functional.one_hot(mask.view(bs, -1), num_classes).transpose(1, 2).to(prob.dtype)
        dims = 2
        inter = (prob * onehot).sum(dims)
        cardinality = (prob + onehot).sum(dims)
        return (1 - (2 * inter + self.smooth) / (cardinality + self.smooth)).mean()


loss = DiceLoss()


def optimizer(params):
    return torch.optim.SGD(params, lr=1.0)
