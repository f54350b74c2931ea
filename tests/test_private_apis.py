"""What the package uses of torch that torch does not document, one test each.

A torch without one of them fails here, with the name, before anything stranger happens.
The tables are complete: other tests read the sources. What ddpcheck does without each
is listed in ddpcheck/run/private.py, and tested in tests/run/test_private.py.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import rpc
from torch.func import vmap
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad

from ddpcheck.run import private
from ddpcheck.run.modes.data_parallel import DataParallelOnOneDevice
from tests.run import without

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
    "_forward_hooks": lambda: _with_hooks()._forward_hooks,  # noqa: SLF001
    "_forward_pre_hooks": lambda: _with_hooks()._forward_pre_hooks,  # noqa: SLF001
    "_modules": lambda: list(nn.Sequential(nn.ReLU())._modules) == ["0"],  # noqa: SLF001
    "_parameters": lambda: list(nn.Linear(1, 1)._parameters) == ["weight", "bias"],  # noqa: SLF001
    "_pytree": lambda: torch.utils._pytree.tree_leaves({"a": [1, 2]}) == [1, 2],  # noqa: SLF001
    "_version": lambda: torch.zeros(1).add_(1)._version == 1,  # noqa: SLF001
}
# Modules, by their names: what is taken from them.
MODULES = {
    "torch._compile": "_disable_dynamo",
    "torch._dynamo": "config",
    "torch.nn.parallel._functions": "Broadcast",
    "torch.utils._python_dispatch": "TorchDispatchMode",
    "torch.utils._pytree": "tree_leaves",
}
# Names that are looked up as text, and may be missing: where torch has them.
TEXTS: dict[str, Callable[[], object]] = {
    "_AllReduce": lambda: issubclass(
        _of("torch.distributed.nn.functional")._AllReduce,  # noqa: SLF001
        torch.autograd.Function,
    ),
    "_allgather_base": lambda: dist.ProcessGroup._allgather_base,  # noqa: SLF001
    "_are_functorch_transforms_active": lambda: vmap(
        lambda _: torch.full((), torch._C._are_functorch_transforms_active())  # noqa: SLF001
    )(torch.ones(1)).all(),
    "_attention": lambda: _of("torch.distributed.tensor.experimental._attention"),
    "_clip_grads_with_norm_": lambda: clip_grad._clip_grads_with_norm_,
    "_comm_hooks": lambda: "self._comm_hooks" in _source_of_ddp(),
    "_ddp_params_and_buffers_to_ignore": lambda: (
        '"_ddp_params_and_buffers_to_ignore"' in _source_of_ddp()
    ),
    "_engine_run_backward": lambda: torch.autograd.graph._engine_run_backward,  # noqa: SLF001
    "_former_parameters": lambda: "weight" in _replica()._former_parameters,  # noqa: SLF001
    "_fsdp_wrapped_module": lambda: (
        _of("torch.distributed.fsdp._common_utils").FSDP_WRAPPED_MODULE
        == "_fsdp_wrapped_module"
    ),
    "_get_iterator": lambda: (
        "_get_iterator" in torch.utils.data.DataLoader.__iter__.__code__.co_names
    ),
    "_is_param": lambda: isinstance(_marked(torch.zeros(1)), nn.Parameter),
    "_is_replica": lambda: _replica()._is_replica,  # noqa: SLF001
    "_orig_mod": lambda: (
        "self._orig_mod"
        in inspect.getsource(_of("torch._dynamo.eval_frame").OptimizedModule)
    ),
    "_reduce_scatter_base": lambda: dist.ProcessGroup._reduce_scatter_base,  # noqa: SLF001
    "_register_builtin_comm_hook": lambda: (
        "def _register_builtin_comm_hook" in _source_of_ddp()
    ),
    "_saved_other": lambda: float(_quotient().grad_fn._saved_other) == 16,  # noqa: SLF001
    "_schema": lambda: (
        torch.ops.aten.dropout.default._schema.arguments[1].name == "p"  # noqa: SLF001
    ),
    "_set_static_graph": lambda: "def _set_static_graph" in _source_of_ddp(),
    "_transports": lambda: (
        "_transports" in inspect.signature(rpc.TensorPipeRpcBackendOptions).parameters
    ),
}
# DataParallel's algorithm calls it; the emulation relies on what it makes.
_OF_TORCH = {"_replicate_for_data_parallel"}
# Python's own, and ddpcheck's.
_OTHER = {
    "_getframe",
    "_forkserver",
    "_config",
    "_fields",
    "_target",  # of multiprocessing's Process
    "_ddpcheck_wrapper",
    "_ddpcheck_own_part",
    "_ddpcheck_place",
    "_ddpcheck_as_built",
    "_ddpcheck_is_held",
    "_ddpcheck_calls",
    "_ddpcheck_divide_factor",
}


def _marked(tensor: torch.Tensor) -> torch.Tensor:
    setattr(tensor, "_is_param", True)  # noqa: B010
    return tensor


def _with_hooks() -> nn.Module:
    module = nn.Linear(1, 1)
    module.register_forward_pre_hook(lambda *_: None)
    module.register_forward_hook(lambda *_: None)
    return module


def _hooked() -> torch.Tensor:
    tensor = torch.zeros(1, requires_grad=True)
    tensor.register_hook(lambda grad: grad)
    return tensor


def _quotient() -> Any:
    return torch.ones((), requires_grad=True) / 16


def _replica() -> Any:
    """Returns a replica as DataParallel makes it, without its devices."""
    made = DataParallelOnOneDevice(nn.Linear(1, 1), 2)
    return made.replicate(made.module, made.device_ids)[1]


def _of(module: str) -> Any:
    return importlib.import_module(module)


def _source_of_ddp() -> str:
    return inspect.getsource(DistributedDataParallel)


@pytest.mark.parametrize("name", [*ATTRIBUTES, *TEXTS])
def test_private_attribute_is_there_and_does_what_it_did(name: str) -> None:
    try:
        holds = (ATTRIBUTES | TEXTS)[name]()
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


def _taken(source: str) -> set[str]:
    """Returns the private names that code takes of what is not its own."""
    lines = [line for line in source.splitlines() if "noqa: SLF001" in line]
    code = [line.partition("  # ")[0] for line in lines]
    found = {n for line in code for n in re.findall(r"\.(_[A-Za-z]\w*)", line)}
    page = ast.get_docstring(ast.parse(source), clean=False) or ""  # users' own code
    own = source.replace(page, "") if page else source
    imports = re.findall(r"^ *(?:import|from) torch.*", own, re.MULTILINE)
    return found | {
        n for line in imports for n in re.findall(r"(?<!as )\b_[A-Za-z]\w*", line)
    }


def _named(source: str) -> set[str]:
    """Returns the private names that stand in a source as text."""
    modules = re.findall(r"torch(?:\.\w+)*\._[A-Za-z]\w*", source)
    constants = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant)]
    texts = {n.value for n in constants if isinstance(n.value, str)}
    alone = {text for text in texts if re.fullmatch(r"_[A-Za-z]\w*", text)}
    return alone | {m.rpartition(".")[2] for m in modules}


# Not what knows torch by name only, and not the ranks: see ranks/server/forkserver.py.
SOURCES = [*PACKAGE.glob("run/**/*.py"), *PACKAGE.glob("diagnose/**/*.py")]
ELSEWHERE = [*PACKAGE.glob("*.py"), *PACKAGE.glob("suite/zoo/*.py")]
KNOWN = {name.rpartition(".")[2] for name in MODULES} | set(ATTRIBUTES) | set(TEXTS)


def test_tables_have_all_that_the_package_uses() -> None:
    for path in SOURCES:
        source = path.read_text(encoding="utf-8")
        unknown = (_taken(source) | _named(source)) - KNOWN - _OF_TORCH - _OTHER
        assert not unknown, f"{path.name}: a table and run/private.py lack {unknown}"


def test_one_module_alone_takes_private_names() -> None:
    for path in {*SOURCES, *ELSEWHERE} - {Path(private.__file__)}:
        assert _taken(path.read_text(encoding="utf-8")) <= _OTHER, path.name


def test_use_that_is_not_in_a_table_would_be_seen() -> None:
    assert _taken("ddp._set_static_graph()  # noqa: SLF001\n") == {"_set_static_graph"}
    assert _taken("import torch.nn._reduction\n") == {"_reduction"}
    assert _taken("if x:\n    from torch.nn import _reduction\n") == {"_reduction"}
    assert _taken('"""Example:\n    from torch import _C\n"""\n') == set()
    assert _named("a = getattr(ddp, '_comm_hooks', ())\n") == {"_comm_hooks"}
    assert _named("import_module('torch._dynamo')\n") == {"_dynamo"}


def test_one_module_lists_what_is_done_without_each() -> None:
    listed = set(re.findall(r"\w+", private.__doc__ or ""))
    assert KNOWN - {"_C"} <= listed


def test_everything_that_is_chosen_has_a_stand_in() -> None:
    tree = ast.parse(inspect.getsource(private))
    names = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.col_offset in (0, 4)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and not target.id.startswith("_")
    }
    assert names - {"Named"} == set(without.NAMES)
    other = without.found_nothing()
    for name in without.NAMES:
        assert getattr(other, name) != getattr(private, name), name
