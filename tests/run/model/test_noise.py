"""Noise as a function of the sample: shards draw the single-process numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ddpcheck.compare import tree
from ddpcheck.run.model import draws
from ddpcheck.run.model.draws import NoiseMismatchError, Shape
from ddpcheck.run.model.noise import DrawCounter, SampleNoise, bound

pytestmark = pytest.mark.usefixtures("seeded")

TOTAL = 7
Layer = Callable[[Tensor], Tensor]


def drop_path(x: Tensor) -> Tensor:
    """As timm's: whole samples are dropped by a mask of shape [B, 1]."""
    mask = x.new_empty(len(x), 1).bernoulli_(0.6)
    return x * mask / 0.6


def time_first(x: Tensor) -> Tensor:
    """Noise for [T, B, D], the batch in dimension 1."""
    series = torch.stack([x, 2 * x, 3 * x])
    return (series + torch.randn_like(series)).sum(0)


def mixed(x: Tensor) -> Tensor:
    """Several draws, some of them the same on every rank."""
    shared = torch.rand(x.shape[1])
    own = torch.randint(0, 5, (len(x),)).unsqueeze(1)
    return F.dropout(x, 0.3) * shared + own + torch.rand(len(x), 2).sum(1, keepdim=True)


def normal(x: Tensor) -> Tensor:
    return torch.normal(x, 0.5) + torch.randn(x.shape)


def cross_attention(x: Tensor) -> Tensor:
    """A fused operation that torch marks as random, of a key that is no query's size.

    Drawn for the whole batch it read what lies behind the key.
    """
    heads = x[:, None, :, None] * torch.ones(5)
    drop_path(x)
    return F.scaled_dot_product_attention(heads, heads[:, :, :3], heads[:, :, 1:])


LAYERS: dict[str, Layer] = {
    "dropout": nn.Dropout(0.4),
    "in place": lambda x: F.dropout(x.clone(), 0.4, inplace=True),
    "alpha dropout": nn.AlphaDropout(0.4),
    "randn_like": lambda x: x + torch.randn_like(x),
    "uniform_": lambda x: x + torch.empty_like(x).uniform_(),
    "drop path": drop_path,
    "time first": time_first,
    "mixed": mixed,
    "normal": normal,
    "multinomial": lambda x: x * torch.multinomial(x.abs() + 1, 2)[:, :1],
    "rrelu": lambda x: nn.RReLU()(x - 1.4),
    "rrelu in place": lambda x: nn.RReLU(inplace=True)(x - 1.4),
    "gamma of one shape": lambda x: torch.distributions.Gamma(2.0, 1.0).sample(x.shape),
    "cross attention": lambda x: cross_attention(x).squeeze(1),
    "multinomial of one row": lambda x: (
        x + torch.multinomial(torch.arange(9) + 1.0, len(x)).unsqueeze(1)
    ),
}


def _noise(
    start: int, size: int, shapes: list[Shape | None] | None, step: int = 0
) -> SampleNoise:
    return SampleNoise(
        seed=3, step=step, shapes=shapes, start=start, size=size, total=TOTAL
    )


def _whole(layer: Layer, x: Tensor, step: int = 0) -> tuple[Tensor, list[Shape | None]]:
    noise = _noise(0, TOTAL, None, step)
    with noise:
        out = layer(x)
    return out, noise.shapes


def _sharded(
    layer: Layer, x: Tensor, shapes: list[Shape | None], world_size: int
) -> Tensor:
    parts = []
    for rank in range(world_size):
        torch.manual_seed(100 + rank)  # ranks come with other seeds
        start, size = tree.shard_range(TOTAL, rank, world_size)
        with _noise(start, size, shapes):
            parts.append(layer(x[start : start + size]))
    return torch.cat(parts)


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
@pytest.mark.parametrize("name", list(LAYERS))
def test_shards_draw_what_one_process_draws(name: str, world_size: int) -> None:
    x = torch.linspace(1, 2, TOTAL * 4, dtype=torch.float64).reshape(TOTAL, 4)
    torch.manual_seed(0)
    whole, shapes = _whole(LAYERS[name], x)
    assert torch.equal(_sharded(LAYERS[name], x, shapes, world_size), whole)


def test_gradients_go_through_the_same_mask() -> None:
    x = torch.ones(TOTAL, 3, dtype=torch.float64, requires_grad=True)
    whole, shapes = _whole(nn.Dropout(0.5), x)
    (expected,) = torch.autograd.grad(whole.sum(), x)
    (found,) = torch.autograd.grad(_sharded(nn.Dropout(0.5), x, shapes, 3).sum(), x)
    assert torch.equal(found, expected)
    assert expected.unique().tolist() == [0.0, 2.0]


def test_noise_differs_between_steps_and_repeats_within_one() -> None:
    x = torch.ones(TOTAL, 8)
    first, _ = _whole(nn.Dropout(0.5), x)
    again, _ = _whole(nn.Dropout(0.5), x)
    other, _ = _whole(nn.Dropout(0.5), x, step=1)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_draw_of_another_shape_is_a_mismatch() -> None:
    _, shapes = _whole(lambda x: x + torch.rand(TOTAL, 2).sum(), torch.ones(TOTAL, 2))
    with (
        pytest.raises(NoiseMismatchError, match=r"shape \(3, 5\) where .* \(7, 2\)"),
        _noise(0, 3, shapes),
    ):
        torch.rand(3, 5)


def test_draw_more_than_the_reference_is_a_mismatch() -> None:
    with (
        pytest.raises(NoiseMismatchError, match=r"draw 0 of shape .* draws no more"),
        _noise(0, 3, []),
    ):
        torch.rand(3)


@pytest.mark.parametrize(
    "layer",
    [lambda x: x[torch.randperm(len(x))], lambda x: x + torch.poisson(x)],
    ids=["permutation", "by values"],
)
def test_draw_of_no_sample_is_a_mismatch(layer: Layer) -> None:
    x = torch.linspace(1, 2, TOTAL * 4).reshape(TOTAL, 4)
    _, shapes = _whole(layer, x)
    with pytest.raises(NoiseMismatchError), _noise(0, 3, shapes):
        layer(x[:3])


def test_permutation_of_what_all_ranks_have_is_none() -> None:
    x = torch.linspace(1, 2, TOTAL * 4).reshape(TOTAL, 4)

    def layer(x: Tensor) -> Tensor:
        return x[:, torch.randperm(4)]

    whole, shapes = _whole(layer, x)
    assert torch.equal(_sharded(layer, x, shapes, 3), whole)


def test_fewer_draws_than_the_reference_are_a_mismatch() -> None:
    def layer(x: Tensor) -> Tensor:
        return torch.stack([row * torch.rand(1) for row in x])

    x = torch.ones(TOTAL, 2)
    _, shapes = _whole(layer, x)
    with (
        pytest.raises(NoiseMismatchError, match=r"3 draws in a step .* has 7"),
        bound(_noise(0, 3, shapes)),
    ):
        layer(x[:3])
    with bound(_noise(0, 3, shapes), is_whole=False):
        layer(x[:3])


def test_gradients_go_through_the_same_slopes() -> None:
    x = torch.linspace(-1, 1, TOTAL * 3).reshape(TOTAL, 3).requires_grad_()
    whole, shapes = _whole(nn.RReLU(), x)
    (expected,) = torch.autograd.grad(whole.sum(), x)
    (found,) = torch.autograd.grad(_sharded(nn.RReLU(), x, shapes, 3).sum(), x)
    assert torch.equal(found, expected)
    assert 0.125 <= expected.min() < expected.max() == 1


def _stream(seed: int, *, again: bool = False) -> int | None:
    noise = _noise(0, 3, [(4,), (TOTAL, 2)])
    with noise:
        torch.manual_seed(seed)
        torch.rand(4)  # of no sample
        if again:
            torch.manual_seed(9)
        torch.rand(3, 2)
    return noise.stream


def test_state_is_noted_in_which_the_target_left_the_generator() -> None:
    assert _stream(3) == _stream(3) != _stream(4)
    assert _stream(3, again=True) == _stream(4, again=True)


def test_generator_of_the_models_own_is_left_alone() -> None:
    generator = torch.Generator().manual_seed(5)
    expected = torch.rand(2, generator=torch.Generator().manual_seed(5))
    with _noise(0, 3, []):
        found = torch.rand(2, generator=generator)
    assert torch.equal(found, expected)


def test_counter_counts_random_operations_only() -> None:
    with DrawCounter() as counter:
        F.dropout(torch.ones(3), 0.5)
        torch.randn(2)
        torch.ones(2).add(1)
    assert counter.count == 2


def test_dropout_inside_of_an_operation_is_a_draw_of_no_sample() -> None:
    attend = torch.ops.aten._scaled_dot_product_flash_attention.default  # noqa: SLF001
    backward = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default  # noqa: SLF001
    x = torch.ones(1, 1, 2, 4)
    given: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((x, x, x), {}),
        ((x, x, x, 0.0), {}),
        ((x, x, x, 0.25), {}),
        ((x, x, x), {"dropout_p": 0.5}),
    ]
    assert [draws.is_random(attend, *g) for g in given] == [False, False, True, True]
    assert [draws.draws_inside(attend, *g) for g in given] == [False] * 2 + [True] * 2
    assert not draws.is_random(backward, (x,), {"dropout_p": 0.5})
    assert draws.is_random(torch.ops.aten.bernoulli.default, (x,), {})
    assert not draws.draws_inside(torch.ops.aten.bernoulli.default, (x,), {})


def test_counter_has_the_shapes_of_what_own_generators_draw() -> None:
    generator = torch.Generator()
    with DrawCounter() as counter:
        torch.randn(5)
        torch.randn(2, 3, generator=generator)
        torch.multinomial(torch.ones(9), 4, generator=generator)
        torch.randperm(6, generator=generator)
    assert counter.own == [(2, 3), (4,)]


def test_bound_without_noise_draws_as_ever() -> None:
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    with bound(None):
        found = torch.rand(2)
    assert torch.equal(found, expected)
