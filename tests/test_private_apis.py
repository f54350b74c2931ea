"""What the package uses of torch that torch does not document, one test each.

A torch without one of them fails here, with the name, before anything stranger happens.
The table is complete: another test reads the sources.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("seeded")  # layers draw their weights

PACKAGE = Path(__file__).parents[1] / "ddpcheck"
# Attributes of torch's objects, by name: what must be true of them.
ATTRIBUTES: dict[str, Callable[[], object]] = {
    "_BatchNorm": lambda: issubclass(nn.BatchNorm1d, nn.modules.batchnorm._BatchNorm),  # noqa: SLF001
    "_C": lambda: torch._C.DisableTorchFunction().__enter__,  # noqa: SLF001
    "_apply": lambda: (
        nn.Linear(1, 1)._apply(lambda t: t.double()).weight.dtype  # noqa: SLF001
        == torch.float64
    ),
    "_backward_hooks": lambda: _hooked()._backward_hooks,  # noqa: SLF001
    "_buffers": lambda: "running_mean" in nn.BatchNorm1d(1)._buffers,  # noqa: SLF001
    "_modules": lambda: list(nn.Sequential(nn.ReLU())._modules) == ["0"],  # noqa: SLF001
    "_parameters": lambda: list(nn.Linear(1, 1)._parameters) == ["weight", "bias"],  # noqa: SLF001
    "_pytree": lambda: torch.utils._pytree.tree_leaves({"a": [1, 2]}) == [1, 2],  # noqa: SLF001
    "_schema": lambda: torch.ops.aten.add_.Tensor._schema.name == "aten::add_",  # noqa: SLF001
    "_version": lambda: torch.zeros(1).add_(1)._version == 1,  # noqa: SLF001
}
# Modules, by their names: what is taken from them.
MODULES = {
    "torch._dynamo": "config",
    "torch.nn.parallel._functions": "Broadcast",
    "torch.utils._python_dispatch": "TorchDispatchMode",
    "torch.utils._pytree": "tree_leaves",
}
# DataParallel's algorithm calls it; the emulation relies on what it makes.
_OF_TORCH = {"_replicate_for_data_parallel"}
_OTHER = {"_getframe", "_forkserver", "_config", "_fields"}  # Python's own


def _hooked() -> torch.Tensor:
    tensor = torch.zeros(1, requires_grad=True)
    tensor.register_hook(lambda grad: grad)
    return tensor


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_private_attribute_is_there_and_does_what_it_did(name: str) -> None:
    try:
        holds = ATTRIBUTES[name]()
    except AttributeError as error:
        pytest.fail(f"torch {torch.__version__} has no {name}: {error}")
    assert holds, f"torch {torch.__version__}: {name} is another thing now"


@pytest.mark.parametrize("name", MODULES)
def test_private_module_is_there_and_has_what_is_taken(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        pytest.fail(f"torch {torch.__version__}: {error}")
    assert hasattr(module, MODULES[name]), f"torch {torch.__version__}: {name}"


def test_replicas_of_data_parallel_hold_parameters_that_are_no_leaves() -> None:
    module = nn.Linear(1, 1)
    replica = module._replicate_for_data_parallel()  # noqa: SLF001
    assert replica is not module, "torch's replicas are made in another way now"
    assert "weight" not in dict(replica.named_parameters())


def _used(source: str) -> set[str]:
    """Returns the private attributes that a source takes of what is not its own."""
    lines = [line for line in source.splitlines() if "noqa: SLF001" in line]
    code = [line.partition("  # ")[0] for line in lines]
    found = {n for line in code for n in re.findall(r"\.(_[A-Za-z]\w*)", line)}
    modules = re.findall(r"torch(?:\.\w+)*\._[A-Za-z]\w*", source)
    return found | {m.rpartition(".")[2] for m in modules}


def test_table_has_all_that_the_package_uses() -> None:
    known = set(ATTRIBUTES) | _OF_TORCH | _OTHER
    known |= {name.rpartition(".")[2] for name in MODULES}
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.parent.name == "ranks":  # multiprocessing's, see ranks/forkserver.py
            continue
        unknown = _used(path.read_text(encoding="utf-8")) - known
        assert not unknown, f"{path.name}: add {unknown} to the table"


def test_use_that_is_not_in_the_table_would_be_seen() -> None:
    assert _used("ddp._set_static_graph()  # noqa: SLF001\n") == {"_set_static_graph"}
    assert _used("import torch.nn._reduction\n") == {"_reduction"}
