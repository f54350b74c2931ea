"""The contents of a model do not depend on overridden methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from ddpcheck.run.model import batch_norm, contents
from ddpcheck.run.model.names import Names, for_optimizer, keep_own

# Of torch.jit, for torch.compile and torch.export.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Converting a tensor:torch.jit.TracerWarning"),
]


@pytest.fixture(autouse=True)
def _own_generator() -> Iterator[None]:
    with torch.random.fork_rng():
        yield


def net() -> nn.Sequential:
    """Returns two layers that share a weight, and a batch norm between them."""
    first, last = nn.Linear(4, 4), nn.Linear(4, 4)
    last.weight = first.weight
    return nn.Sequential(first, nn.BatchNorm1d(4), last)


class _Hiding(nn.Module):
    """Overrides everything that could be asked."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def parameters(self, recurse: bool = True) -> Any:  # noqa: ARG002, FBT001, FBT002
        return [{"params": [self.net[0].bias], "lr": 0.5}]

    def named_parameters(self) -> Any:  # type: ignore[override]
        return []

    def named_buffers(self) -> Any:  # type: ignore[override]
        return []

    def children(self) -> Any:
        return []

    def modules(self) -> Any:  # type: ignore[override]
        return iter(())

    def named_modules(self) -> Any:  # type: ignore[override]
        return []


class _Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = net()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "plain": _Plain,
    "scripted": lambda: torch.jit.script(net()),
    "traced": lambda: torch.jit.trace(net(), torch.randn(3, 4)),
    "compiled": lambda: torch.compile(net(), backend="eager"),  # type: ignore[dict-item, return-value]
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_contents_are_what_modules_of_torch_name(make: Callable[[], nn.Module]) -> None:
    model = make()
    found: Iterator[tuple[str, Any]]
    for found, expected in (
        (contents.named_modules(model), model.named_modules()),
        (contents.named_parameters(model), model.named_parameters()),
        (contents.named_buffers(model), model.named_buffers()),
    ):
        pairs = [(name, id(value)) for name, value in found]
        assert pairs == [(name, id(value)) for name, value in expected]
        assert pairs


def test_contents_of_a_model_that_hides_them_are_all_there() -> None:
    hiding, plain = _Hiding(), _Plain()
    for name in ("named_modules", "named_parameters", "named_buffers"):
        found = [key for key, _ in getattr(contents, name)(hiding)]
        assert found == [key for key, _ in getattr(plain, name)()]


def test_optimizer_is_given_what_the_bare_model_chooses_also_where_it_is_wrapped() -> (
    None
):
    model = _Hiding()
    keep_own(model)
    wrapper = nn.Module()
    wrapper.module = model
    for trained in (model, wrapper):
        (group,) = for_optimizer(trained)
        assert group["lr"] == 0.5
        assert group["params"][0] is model.net[0].bias


def test_optimizer_is_given_what_a_wrapper_of_a_plain_model_yields() -> None:
    model, wrapper = net(), nn.Module()
    keep_own(model)
    wrapper.module, wrapper.own = model, nn.Linear(2, 2)
    assert len(for_optimizer(wrapper)) == len(for_optimizer(model)) + 2


def test_scripted_model_keeps_its_names_below_a_wrapper() -> None:
    model = torch.jit.script(net())
    keep_own(model)
    names, wrapper = Names(model), nn.Module()
    wrapper.module = model
    assert list(names.parameters(wrapper)) == [
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
        "2.bias",
    ]


@pytest.mark.parametrize("kind", ["scripted", "traced"])
def test_batch_norm_inside_of_what_torch_jit_compiled_is_known(kind: str) -> None:
    model = MODELS[kind]()
    assert batch_norm.scripts_batch_norm(model)
    assert not batch_norm.scripts_batch_norm(net())
    assert not batch_norm.scripts_batch_norm(torch.jit.script(nn.Linear(2, 2)))
