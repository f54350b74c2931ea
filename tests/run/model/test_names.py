"""One name per tensor, whatever wraps the model."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from ddpcheck.run.model.names import Names, keep_own, shortener

pytestmark = pytest.mark.usefixtures("seeded")


class Wrapper(nn.Module):
    """As DDP: everything is under `module`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


class Compiled(nn.Module):
    """As torch.compile: everything is under `_orig_mod`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._orig_mod = module


class Net(nn.Module):
    """A user's own wrapper, by whatever name."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.scale = nn.BatchNorm1d(2, affine=False)
        self.net = net


class Pair(nn.Module):
    """Two parts and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        self.head = nn.Linear(3, 1, bias=False)


NAMES = ["body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias", "head.weight"]
BUFFERS = [
    "body.1.running_mean",
    "body.1.running_var",
    "body.1.num_batches_tracked",
]


def _inner(model: Pair) -> nn.Module:
    model.body = Wrapper(Compiled(model.body))  # type: ignore[assignment]
    return model


WRAPPINGS: dict[str, Callable[[Pair], nn.Module]] = {
    "bare": lambda model: model,
    "around": Wrapper,
    "twice": lambda model: Wrapper(Compiled(model)),
    "inside": _inner,
    "inside and around": lambda model: Wrapper(_inner(model)),
}


@pytest.mark.parametrize("wrapping", list(WRAPPINGS))
def test_wrapped_tensors_keep_their_names(wrapping: str) -> None:
    model = Pair()
    names = Names(model)
    before = dict(model.named_parameters())
    wrapped = WRAPPINGS[wrapping](model)
    found = names.parameters(wrapped)
    assert list(found) == NAMES
    assert all(found[name] is before[name] for name in NAMES)
    assert list(names.buffers(wrapped)) == BUFFERS


@pytest.mark.parametrize("wrapping", list(WRAPPINGS))
def test_replaced_tensors_keep_their_names(wrapping: str) -> None:
    model = Pair()
    names = Names(model)
    wrapped = WRAPPINGS[wrapping](copy.deepcopy(model))
    assert list(names.parameters(wrapped)) == NAMES


OWN_WRAPPINGS: dict[str, Callable[[Pair], nn.Module]] = {
    "around": Net,
    "copied": lambda model: Net(copy.deepcopy(model)),
    "around a wrapper": lambda model: Net(Wrapper(model)),
    "within a wrapper": lambda model: Wrapper(Net(Compiled(model))),
    "by parts": lambda model: nn.ModuleList([Wrapper(model.head), Net(model.body)]),
}


@pytest.mark.parametrize("wrapping", list(OWN_WRAPPINGS))
def test_own_wrapper_of_any_name_leaves_the_names(wrapping: str) -> None:
    model = Pair()
    keep_own(model)
    names = Names(model)
    wrapped = OWN_WRAPPINGS[wrapping](model)
    assert [n for n in names.parameters(wrapped) if n in NAMES] == NAMES
    found = names.buffers(wrapped)
    assert [n for n in found if n in BUFFERS] == BUFFERS


def test_buffer_that_was_replaced_goes_by_the_module_that_has_it() -> None:
    model = Pair()
    keep_own(model)
    names, wrapped = Names(model), Net(model)
    model.body[1].running_mean = new = torch.ones(3)
    assert names.buffers(wrapped)["body.1.running_mean"] is new
    model.body[1] = nn.BatchNorm1d(3)
    assert names.buffers(wrapped).keys() >= set(BUFFERS)


def test_copy_of_a_part_that_is_there_itself_has_a_name_of_its_own() -> None:
    model = Pair()
    keep_own(model)
    model.average = copy.deepcopy(model.body)
    found = Names(model).buffers(Net(model))
    assert [n for n in found if n.startswith("average.")] == [
        n.replace("body", "average") for n in BUFFERS
    ]


def test_what_leads_to_the_model_is_the_model_too() -> None:
    model = Pair()
    keep_own(model)
    short = shortener(wrapped := Net(Wrapper(model)))
    found = [short(path) for path, _ in wrapped.named_modules()]
    assert found[:6] == ["", "scale", "", "", "body", "body.0"]


def test_model_with_a_part_called_module_keeps_it_in_its_names() -> None:
    model = nn.Module()
    model.module = nn.Linear(1, 1)
    names = Names(model)
    assert list(names.parameters(Wrapper(model))) == ["module.weight", "module.bias"]
    again = names.parameters(Wrapper(copy.deepcopy(model)))
    assert list(again) == ["module.weight", "module.bias"]


def test_own_part_called_module_is_told_from_the_wrappers_of_that_name() -> None:
    model = nn.Module()
    model.module = Wrapper(nn.Linear(1, 1, bias=False))
    model.weight = nn.Parameter(torch.zeros(1))
    keep_own(model)
    expected = ["weight", "module.module.weight"]
    for wrapped in (Wrapper(Compiled(model)), copy.deepcopy(Wrapper(model))):
        short = shortener(wrapped)
        assert [short(path) for path, _ in wrapped.named_parameters()] == expected
        assert list(Names(model).parameters(wrapped)) == expected


def test_what_wraps_the_model_from_the_beginning_is_no_part_of_its_names() -> None:
    model = nn.DataParallel(Pair())
    keep_own(model)
    short = shortener(model)
    assert [short(path) for path, _ in model.named_parameters()] == NAMES


def test_tied_parameter_has_one_name() -> None:
    model = Pair()
    model.other = model.head
    assert list(Names(model).parameters(Wrapper(model))) == NAMES


def test_order_is_the_bare_models() -> None:
    model = Pair()
    names = Names(model)
    turned = nn.Module()
    turned.head, turned.body = model.head, model.body
    assert list(names.parameters(turned)) == NAMES


def test_parameter_of_the_optimizer_alone_is_named_by_its_place() -> None:
    model = Pair()
    names = Names(model)
    foreign = nn.Linear(1, 1, bias=False).weight
    held = {"optimizer[0]": model.head.weight, "optimizer[1]": foreign}
    assert list(names.parameters(model, held)) == [*NAMES, "optimizer[1]"]


def test_known_parameter_that_the_model_lost_keeps_its_name() -> None:
    model = Pair()
    names = Names(model)
    lost = model.head.weight
    model.head = nn.Identity()  # type: ignore[assignment]
    assert list(names.parameters(model, {"optimizer[0]": lost})) == NAMES


def test_new_parameter_has_the_name_that_the_optimizers_old_one_had() -> None:
    model = Pair()
    names = Names(model)
    old = model.head.weight
    model.head.weight = new = nn.Parameter(old.detach().clone())
    found = names.parameters(model, {"optimizer[0]": old, "optimizer[1]": new})
    assert found["head.weight"] is new
    assert found["optimizer[0]"] is old
    assert len(found) == len(NAMES) + 1
