"""Gradients that a model's own backward adds, found without any loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from ddpcheck.diagnose.probes import reference
from ddpcheck.diagnose.probes.evidence import Injected


class Added(torch.autograd.Function):
    """Hands an output on, and gives a number a gradient of one."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, term: Tensor) -> Tensor:
        """Returns the output."""
        ctx.save_for_backward(term)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the output's own gradient, and one."""
        (term,) = ctx.saved_tensors
        return grads[0], torch.ones_like(term)


class Straight(torch.autograd.Function):
    """Rounds, and lets the gradient pass: nothing is added."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Returns whole numbers."""
        del ctx
        return x.round()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """Returns the gradient as it is."""
        del ctx
        return grads[0]


added: Callable[..., Tensor] = Added.apply
straight: Callable[..., Tensor] = Straight.apply


def _shares(net: Any, x: Tensor) -> Any:
    return added(net["head"](x), net["gate"](x).softmax(-1).square().mean())


def _size(net: Any, x: Tensor) -> Any:
    return added(net["head"](x), net["gate"](x).square().mean())


def _rounded(net: Any, x: Tensor) -> Any:
    return net["head"](straight(net["gate"](x)))


def _plain(net: Any, x: Tensor) -> Any:
    return net["head"](x) * net["gate"](x).softmax(-1)


GATE = ("gate.weight", "gate.bias")


@pytest.mark.parametrize(
    ("forward", "expected"),
    [
        (_shares, Injected(names=GATE, of_scores=True)),
        (_size, Injected(names=GATE)),
        (_rounded, Injected()),
        (_plain, Injected()),
    ],
)
@pytest.mark.usefixtures("seeded")
def test_parameters_that_get_a_gradient_of_their_own(
    forward: Callable[[Any, Tensor], Any], expected: Injected
) -> None:
    net = nn.ModuleDict({"gate": nn.Linear(4, 4), "head": nn.Linear(4, 4)})
    output = forward(net, torch.randn(6, 4))
    assert reference.injected_by(net, {"scores": output}) == expected
    output.sum().backward()  # its graph is still there
    assert isinstance(net["head"], nn.Linear)
    assert net["head"].weight.grad is not None


@pytest.mark.usefixtures("seeded")
def test_checkpoint_that_refuses_to_be_asked_is_passed_over() -> None:
    # Held by a module it would be taken for a library that needs the compiler.
    checkpoint = torch.utils.checkpoint.checkpoint
    layer = nn.Linear(4, 4)
    x = torch.randn(6, 4, requires_grad=True)
    assert (
        reference.injected_by(layer, checkpoint(layer, x, use_reentrant=True))
        == Injected()
    )


@pytest.mark.usefixtures("seeded")
def test_output_without_a_graph_adds_nothing() -> None:
    assert reference.injected_by(nn.Linear(2, 2), torch.ones(3, 2)) == Injected()
