import math

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import nn
from torch.nn import functional as F


class CLIP(nn.Module):
    def __init__(self):
        super().__init__()
        self.visual = nn.Linear(16, 8)
        self.text = nn.Linear(10, 8)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(4.0)))

    def forward(self, pair):
        image, text = pair.split([16, 10], 1)
        return F.normalize(self.visual(image), dim=-1), F.normalize(self.text(text), dim=-1), self.logit_scale.exp()


def model():
    torch.manual_seed(120)
    return CLIP()


def batch():
    g = torch.Generator().manual_seed(121)
    image = torch.randn(16, 16, generator=g)
    text = image[:, :10] + 0.5 * torch.randn(16, 10, generator=g)
    return torch.cat([image, text], 1), torch.arange(16)


def gather_features(features):
    return torch.cat(torch.distributed.nn.all_gather(features))


def loss(output, _):
    image, text, scale = output
    all_image, all_text, first = image, text, 0
    if dist.is_initialized():
        all_image, all_text = gather_features(image), gather_features(text)
        first = dist.get_rank() * len(image)
    labels = first + torch.arange(len(image))
    return (F.cross_entropy(scale * image @ all_text.t(), labels)
            + F.cross_entropy(scale * text @ all_image.t(), labels)) / 2
