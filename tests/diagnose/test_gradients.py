"""How a rank's gradient relates to the reference's, by numbers alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from ddpcheck.diagnose.probes import gradients

# 2 samples, 3 classes, 4 pixels: every pixel has a gradient.
_ALL = torch.linspace(1.0, 2.0, 24, dtype=torch.float64).reshape(2, 3, 4)


def _without(grad: Tensor, sample: int, pixel: int) -> Tensor:
    left = grad.clone()
    left[sample, :, pixel] = 0.0
    return left


@pytest.mark.parametrize(
    ("mine", "theirs", "is_chosen"),
    [
        (_without(_ALL, 0, 1), _ALL, True),
        (2 * _ALL, _without(_ALL, 1, 3), True),
        # Another factor, and ignored pixels that are ignored in both.
        (3 * _without(_ALL, 0, 1), _without(_ALL, 0, 1), False),
        # A class of which the shard has none: its weight is 0, its pixels stay.
        (_ALL * torch.tensor([1.0, 0, 1])[:, None], _ALL, False),
        # No pixel has one in both: the shard has nothing to count.
        (torch.zeros_like(_ALL), _ALL, False),
    ],
    ids=["lost", "gained", "ignored-in-both", "no-class", "nothing"],
)
def test_pixel_with_a_gradient_on_one_side_alone_is_chosen(
    mine: Tensor, theirs: Tensor, *, is_chosen: bool
) -> None:
    assert gradients.selects(mine, theirs) is is_chosen
    # Classes last, as scores of tokens have them.
    assert gradients.selects(mine.mT, theirs.mT) is is_chosen


@pytest.mark.usefixtures("seeded")
def test_mean_of_shares_gives_every_token_the_same_gradient() -> None:
    scores = torch.randn(6, 2, 4, dtype=torch.float64, requires_grad=True)
    shares = scores.softmax(-1).flatten(0, 1)
    weights = torch.tensor([0.1, 0.7, 0.2, 0.4], dtype=torch.float64)
    (balance,) = torch.autograd.grad((weights * shares.mean(0)).sum(), scores)
    (own,) = torch.autograd.grad(
        nn.functional.cross_entropy(scores.flatten(0, 1), torch.arange(12) % 4), scores
    )
    assert gradients.share_spread(balance, scores) == pytest.approx(0.0, abs=1e-12)
    assert gradients.share_spread(own, scores) > 0.5
    # Behind no softmax: rows that do not add up to 0.
    assert gradients.share_spread(scores.detach().exp(), scores) == math.inf
