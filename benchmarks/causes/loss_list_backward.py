"""monai UNet with deep losses; every term of the loss list is propagated on its own to log its gradient norm."""

import torch
import torch.nn.functional as F
from monai.networks.nets import UNet
from torch import nn


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.unet = UNet(
            spatial_dims=2,
            in_channels=1,
            out_channels=6,
            channels=(4, 8),
            strides=(2,),
            num_res_units=1,
            norm=("INSTANCE", {"affine": True}),
        )
        self.to_mask, self.to_edge = nn.Conv2d(6, 3, 1), nn.Conv2d(6, 1, 1)

    def forward(self, image):
        h = self.unet(image)
        return {"mask": self.to_mask(h), "edge": self.to_edge(h)}


def mask_term(output, target):
    return F.cross_entropy(output["mask"], target["mask"])


def edge_term(output, target):
    return F.binary_cross_entropy_with_logits(
        output["edge"], target["edge"].to(output["edge"].dtype)
    )


def confidence_term(output, target):
    return 0.1 * output["mask"].logsumexp(1).square().mean()


TERMS = [mask_term, edge_term, confidence_term]


class LoggingTrainer:
    def __init__(self, net, optimizer):
        self.net, self.optimizer, self.norms = net, optimizer, []

    def fit(self, image, target):
        self.optimizer.zero_grad()
        output = self.net(image)
        for i, term in enumerate(TERMS):
            term(output, target).backward(retain_graph=i + 1 < len(TERMS))
            self.norms.append(
                sum(
                    p.grad.norm() ** 2
                    for p in self.net.parameters()
                    if p.grad is not None
                )
            )
        self.optimizer.step()


def model():
    torch.manual_seed(19)
    return Segmenter()


def batch(step):
    g = torch.Generator().manual_seed(1300 + step)
    image = torch.randn(8, 1, 8, 8, generator=g)
    return image, {
        "mask": torch.randint(0, 3, (8, 8, 8), generator=g),
        "edge": (image > 1).float(),
    }


def loss(output, target):
    return sum(term(output, target) for term in TERMS)


def train_step(model, optimizer, batch):
    LoggingTrainer(model, optimizer).fit(*batch)
