"""Addends of a loss are found in its graph, and their gradients computed singly."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ddpcheck.run.observe import addends

Loss = Callable[[Tensor], Tensor]  # of 5.0


@pytest.mark.parametrize(
    ("loss", "gradients"),
    [
        (lambda p: p**2 + 3 * p.exp(), [10.0, 3 * 148.413159]),
        (lambda p: (p**2 - p.exp()) / 2, [5.0, -74.206580]),
        (lambda p: -(p**2) + (p.sin() + p.cos()) * 4, [-10.0, 1.134649, 3.835697]),
        (lambda p: torch.stack([p**2, p.exp()]).sum(), [10.0, 148.413159]),
        (lambda p: 2 * torch.stack([p**2, p.exp()]).mean(), [10.0, 148.413159]),
        (lambda p: 1 - p**2 + p.exp(), [-10.0, 148.413159]),
    ],
    ids=["sum", "difference", "nested", "stack", "mean-of-a-stack", "constant"],
)
def test_addends_make_up_the_gradient(loss: Loss, gradients: list[float]) -> None:
    p = torch.tensor(5.0, dtype=torch.float64, requires_grad=True)
    value = loss(p)
    found = [g for (g,) in addends.gradients(value, [p]) if g is not None]
    assert [float(g) for g in found] == pytest.approx(gradients, rel=1e-6)
    # The hooks are removed: the sum of the gradients is the whole gradient.
    (whole,) = torch.autograd.grad(value, p)
    assert float(whole) == pytest.approx(sum(gradients), rel=1e-6)


def doubled_often(p: Tensor) -> Tensor:
    """Returns a quotient to which as many ways lead as there are atoms in a mole."""
    value = p.sum() / 16
    for _ in range(79):
        value = value + value
    return value


def twice(p: Tensor) -> Tensor:
    """Returns one value added to itself."""
    value = p.exp()
    return value + value


@pytest.mark.parametrize(
    "loss",
    [
        lambda p: p**2,
        lambda p: (p + 2).exp(),
        lambda p: p.exp() * p.sin(),
        lambda p: 2 / (p**2 + p.exp()),
        lambda p: (p * torch.ones(3) + p**2 * torch.ones(3)).sum(),
        twice,
        doubled_often,
        lambda p: sum(p**n for n in range(2, 12)),
    ],
    ids=[
        "one",
        "inside",
        "product",
        "divisor",
        "vectors",
        "twice",
        "often",
        "too-many",
    ],
)
def test_what_is_no_sum_of_a_few_numbers_has_none(loss: Loss) -> None:
    p = torch.tensor(5.0, requires_grad=True)
    assert list(addends.gradients(loss(p), [p])) == []


def test_kept_addends_alone_get_gradients() -> None:
    p = torch.tensor(5.0, dtype=torch.float64, requires_grad=True)
    value = p**2 + p.exp() + 7 * p.sqrt()
    addends.keep(addends.nodes(value), {0, 2})
    value.backward()
    assert float(p.grad) == pytest.approx(10.0 + 7 / (2 * 5**0.5))  # type: ignore[arg-type]


def test_addends_of_a_loop_are_computed_by_the_same() -> None:
    p = torch.tensor([5.0, 3.0], requires_grad=True)
    value = sum((p[i] - 1).square().sqrt() for i in range(2)) + p.exp().mean()
    first, second, other = addends.kinds(value)
    assert first == second
    assert first.split()[:2] == ["SqrtBackward0", "PowBackward0"]
    assert other.split()[:2] == ["MeanBackward0", "ExpBackward0"]


def soft_cross_entropy(p: Tensor) -> Tensor:
    """Returns torch's with probabilities, over 4 samples."""
    probabilities = torch.full((4, 2), 0.5)
    return nn.functional.cross_entropy(p.expand(4, 2), probabilities)


def written_later(p: Tensor) -> Tensor:
    """Returns a quotient whose divisor has changed: backward raises."""
    count = torch.tensor(16.0)
    value = p.sum() / count
    count += 1
    return value


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (lambda p: p.sum() / 16, [16]),
        (lambda p: (1 / 48) * p.sum(), [48]),
        (lambda p: (p / 16).sum(), [16]),
        (lambda p: 3 * (p**2).sum() / 16 + p.exp().sum() / 5, [5, 16, 1 / 3]),
        (soft_cross_entropy, [4]),  # torch divides by the samples
        (doubled_often, [16]),
        (lambda p: (p.sum() * torch.tensor(2j)).real, []),
        (written_later, []),
        (lambda p: p.exp().sum() * 0, []),
        (lambda p: (p.exp() / 16).exp().sum(), []),
        (lambda p: p.sum() / p.detach().sum(), [10]),
        (lambda p: p.sum() / p.exp().sum(), []),
        (lambda p: (p / torch.tensor([1.0, 16.0])).sum(), []),
    ],
    ids=[
        "quotient",
        "factor",
        "each-sample",
        "two-addends",
        "number-of-torch's",
        "doubled-often",
        "complex",
        "written-later",
        "zero",
        "inside",
        "tensor",
        "with-a-gradient",
        "one-each",
    ],
)
def test_constants_that_divide_are_found(loss: Loss, expected: list[float]) -> None:
    p = torch.tensor([4.0, 6.0], requires_grad=True)
    found = addends.divisors(addends.constants(loss(p)))
    assert sorted(found) == pytest.approx(sorted(expected))
