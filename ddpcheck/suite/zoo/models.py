"""The models of the suite: tiny, seeded, one per architecture that matters.

The weights are drawn in float32 from a generator of their own and then cast, so a model
has the same values under every default dtype, and building it leaves the global random
state as it was.

Shape legend: B batch, C classes, H height, W width, T tokens, V vocabulary, D width.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NUM_FEATURES = 6
NUM_CLASSES = 4
IMAGE_CHANNELS = 2
IMAGE_SIZE = 8
NUM_TOKENS = 5
VOCABULARY = 7  # not NUM_TOKENS, so that [B, T, V] cannot be taken for [B, V, T]

_SEED = 20240
_F32 = torch.float32
_WIDTH = 8
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_AFFINE_NORMS = (*_BATCH_NORMS, nn.InstanceNorm2d, nn.LayerNorm)


class _Conv(nn.Module):
    """A small convolutional classifier, with batch norm or none.

    Shapes: [B, 2, H, W] -> [B, C].
    """

    def __init__(self, *, batch_norm: bool) -> None:
        super().__init__()
        bias = not batch_norm
        self.first = nn.Conv2d(IMAGE_CHANNELS, 4, 3, padding=1, bias=bias)
        self.first_norm = nn.BatchNorm2d(4) if batch_norm else nn.Identity()
        self.second = nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=bias)
        self.second_norm = nn.BatchNorm2d(6) if batch_norm else nn.Identity()
        self.head = nn.Linear(6, NUM_CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        features = F.gelu(self.first_norm(self.first(images)))
        features = F.gelu(self.second_norm(self.second(features)))
        return cast("Tensor", self.head(features.mean(dim=(2, 3))))


class _UNet(nn.Module):
    """A U-Net of two levels with InstanceNorm, which sees one sample at a time.

    Shapes: [B, 2, H, W] -> [B, C, H, W].
    """

    def __init__(self) -> None:
        super().__init__()
        self.down = _unet_block(IMAGE_CHANNELS, 4)
        self.bottom = _unet_block(4, 6)
        self.up = nn.ConvTranspose2d(6, 4, 2, stride=2)
        self.merge = _unet_block(8, 4)
        self.head = nn.Conv2d(4, NUM_CLASSES, 1)

    def forward(self, images: Tensor) -> Tensor:
        skip = self.down(images)
        deep = self.up(self.bottom(F.max_pool2d(skip, 2)))
        merged = self.merge(torch.cat([skip, deep], dim=1))
        return cast("Tensor", self.head(merged))


def _unet_block(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1),
        nn.InstanceNorm2d(channels_out, affine=True),
        nn.GELU(),
    )


class _Transformer(nn.Module):
    """One pre-norm block of causal attention over embedded tokens.

    Shapes: [B, T] integers -> [B, T, V].
    """

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, _WIDTH)
        self.position = nn.Parameter(torch.zeros(NUM_TOKENS, _WIDTH))
        self.attention_norm = nn.LayerNorm(_WIDTH)
        self.query_key_value = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.project = nn.Linear(_WIDTH, _WIDTH)
        self.mlp_norm = nn.LayerNorm(_WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(_WIDTH, 2 * _WIDTH), nn.GELU(), nn.Linear(2 * _WIDTH, _WIDTH)
        )
        self.head = nn.Linear(_WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens) + self.position
        hidden = hidden + self._attend(self.attention_norm(hidden))
        hidden = hidden + self.mlp(self.mlp_norm(hidden))
        return cast("Tensor", self.head(hidden))

    def _attend(self, hidden: Tensor) -> Tensor:
        """Returns the attention of two heads. Shapes: [B, T, D] -> [B, T, D]."""
        split = self.query_key_value(hidden).unflatten(-1, (3, 2, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each [B, 2, T, D / 2]
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return cast("Tensor", self.project(mixed.transpose(1, 2).flatten(2)))


class _UnusedHead(nn.Module):
    """A classifier with a second head that forward never calls: it gets no gradient.

    Shapes: [B, 6] -> [B, C].
    """

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(NUM_FEATURES, _WIDTH)
        self.unused = nn.Linear(_WIDTH, 3)
        self.head = nn.Linear(_WIDTH, NUM_CLASSES)

    def forward(self, features: Tensor) -> Tensor:
        return cast("Tensor", self.head(F.gelu(self.trunk(features))))


class _Tied(nn.Module):
    """A token model whose output layer uses the weight of its embedding.

    Shapes: [B, T] integers -> [B, T, V].
    """

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, _WIDTH)
        self.mix = nn.Linear(_WIDTH, _WIDTH)
        self.head = nn.Linear(_WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return cast("Tensor", self.head(F.gelu(self.mix(self.embed(tokens)))))


def _mlp(outputs: int) -> nn.Module:
    """Returns a perceptron. Shapes: [B, 6] -> [B, outputs]."""
    return nn.Sequential(
        nn.Linear(NUM_FEATURES, _WIDTH), nn.GELU(), nn.Linear(_WIDTH, outputs)
    )


def _bn_dropout() -> nn.Module:
    """Returns a classifier with a bias before batch norm, whose true gradient is 0.

    Shapes: [B, 6] -> [B, C].
    """
    return nn.Sequential(
        nn.Linear(NUM_FEATURES, _WIDTH),
        nn.BatchNorm1d(_WIDTH),
        nn.GELU(),
        nn.Dropout(0.3),
        nn.Linear(_WIDTH, NUM_CLASSES),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """How to build a model, the kind of batch it takes, and what is special about it.

    `kind` is one of batches.KINDS.
    """

    make: Callable[[], nn.Module]
    kind: str
    batch_norm: bool = False
    unused: bool = False


MODELS = {
    "mlp": ModelSpec(make=lambda: _mlp(NUM_CLASSES), kind="vector"),
    "regression": ModelSpec(make=lambda: _mlp(2), kind="regression"),
    "conv": ModelSpec(make=lambda: _Conv(batch_norm=False), kind="image"),
    "conv_bn": ModelSpec(
        make=lambda: _Conv(batch_norm=True), kind="image", batch_norm=True
    ),
    "unet": ModelSpec(make=_UNet, kind="segmentation"),
    "transformer": ModelSpec(make=_Transformer, kind="tokens"),
    "unused_head": ModelSpec(make=_UnusedHead, kind="vector", unused=True),
    "tied": ModelSpec(make=_Tied, kind="tokens"),
    "bn_dropout": ModelSpec(make=_bn_dropout, kind="vector", batch_norm=True),
}


def build(name: str) -> nn.Module:
    """Returns a new model of this name, in train mode, always with the same weights."""
    return copy.deepcopy(_template(name, torch.get_default_dtype()))


def initial(name: str) -> Iterator[tuple[str, nn.Parameter]]:
    """Yields names and parameters that `build` gives every model, to be read only."""
    return _template(name, torch.get_default_dtype()).named_parameters()


@functools.lru_cache(maxsize=32)
def _template(name: str, default_dtype: torch.dtype) -> nn.Module:
    """Returns the model to copy: warm ranks build it again and again."""
    assert torch.get_default_dtype() == default_dtype
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(_SEED)
        model = MODELS[name].make()
    _draw_values(model)
    return model.train()


def silence_dropout(model: nn.Module) -> nn.Module:
    """Sets p = 0 in every dropout of the model, in place, and returns the model."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def freeze_batch_norm(model: nn.Module) -> nn.Module:
    """Puts every batch norm in eval mode, in place; weight and bias still train."""
    for module in model.modules():
        if isinstance(module, _BATCH_NORMS):
            module.eval()
    return model


def _draw_values(model: nn.Module) -> None:
    """Fills parameters and running statistics; no norm is left at the identity."""
    generator = torch.Generator().manual_seed(_SEED)
    with torch.no_grad():
        for module in model.modules():
            for name, tensor in module.named_parameters(recurse=False):
                drawn = torch.randn(tensor.shape, generator=generator, dtype=_F32)
                tensor.copy_(_scaled(module, name, drawn))
            if isinstance(module, _BATCH_NORMS):
                _draw_running_statistics(module, generator)


def _scaled(module: nn.Module, name: str, drawn: Tensor) -> Tensor:
    """Returns the draw at the scale of its part: 1 / sqrt(fan in) for a weight."""
    if isinstance(module, _AFFINE_NORMS) and name == "weight":
        return 1 + 0.2 * drawn
    if isinstance(module, nn.Embedding) or drawn.ndim < 2:  # noqa: PLR2004
        return 0.5 * drawn
    return cast("Tensor", drawn / drawn[0].numel() ** 0.5)


def _draw_running_statistics(
    module: nn.BatchNorm1d | nn.BatchNorm2d, generator: torch.Generator
) -> None:
    assert module.running_mean is not None
    assert module.running_var is not None
    shape = module.running_mean.shape
    mean = torch.randn(shape, generator=generator, dtype=_F32)
    module.running_mean.copy_(0.2 * mean)
    spread = torch.rand(shape, generator=generator, dtype=_F32)
    module.running_var.copy_(0.5 + spread)
