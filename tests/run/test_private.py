"""Results without the private names of torch equal those with them."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddpcheck.errors.problem import UsageError
from ddpcheck.run import private, surroundings
from ddpcheck.run.interventions import replicas as data_parallel_fixes
from ddpcheck.run.interventions.gradients.hooks import without_tensor_hooks
from ddpcheck.run.interventions.gradients.loss_terms import scaled_direct_use
from ddpcheck.run.model import batch_norm, contents, model
from ddpcheck.run.model.noise import SampleNoise
from ddpcheck.run.modes.data_parallel import DataParallelOnOneDevice
from ddpcheck.run.modes.jobs.virtual import ddp as virtual_ddp
from ddpcheck.run.modes.jobs.virtual.group import World
from ddpcheck.run.observe import observe, wrapping
from ddpcheck.run.observe.patches import hooked_parameters
from ddpcheck.run.process import fingerprint
from tests.run import without

pytestmark = pytest.mark.usefixtures("seeded")  # layers draw their weights


@pytest.fixture(params=["with", "without"], autouse=True)
def _names(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs every test in a torch that has the names, and in one that has none."""
    if request.param == "without":
        other = without.found_nothing()
        for name in without.NAMES:
            monkeypatch.setattr(private, name, getattr(other, name))


class Shared(nn.Module):
    """Has one norm under two names, none under a third."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.BatchNorm1d(3)
        self.inner = nn.Sequential(nn.Linear(3, 3), self.first)
        self.again = self.first
        self.register_module("nothing", None)


def test_module_of_several_names_is_replaced_under_each_of_them() -> None:
    made = contents.replace(
        Shared(), lambda m: isinstance(m, nn.BatchNorm1d), lambda _: nn.Identity()
    )
    assert isinstance(made, Shared)
    assert isinstance(made.first, nn.Identity)
    assert made.again is made.inner[1] is made.first
    assert list(dict(made.named_children())) == ["first", "inner"]


def test_root_is_replaced_by_what_is_returned() -> None:
    made = contents.replace(nn.ReLU(), lambda _: True, lambda _: nn.Identity())
    assert isinstance(made, nn.Identity)


def test_buffers_are_read_and_written_by_name() -> None:
    module = nn.BatchNorm1d(2)
    own = private.buffers(module)
    mean = torch.tensor([1.0, -2.0])
    own["running_mean"] = mean
    own["mine"] = torch.ones(1)
    assert module.running_mean is own["running_mean"] is mean
    assert list(own) == ["running_mean", "running_var", "num_batches_tracked", "mine"]
    assert list(module.state_dict())[-1] == "mine"
    assert own.get("other") is None
    del own["mine"]
    assert len(own) == len(list(module.buffers())) == 3


def test_parameters_are_read_by_name() -> None:
    module = nn.Linear(2, 3)
    own = private.parameters(module)
    assert {name: p.shape for name, p in own.items()} == {
        "weight": (3, 2),
        "bias": (3,),
    }
    assert "running_mean" not in own


def test_state_of_a_replica_is_kept() -> None:
    module, replica = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    replica.running_mean = torch.tensor([3.0, 4.0])
    cast("Any", replica).seen = 7
    data_parallel_fixes.keep_state(module, replica)
    assert module.running_mean is not None
    assert module.running_mean.tolist() == [3.0, 4.0]
    assert vars(module)["seen"] == 7
    assert len(list(module.parameters())) == 2


def test_model_is_cast_with_its_ties_and_its_counters() -> None:
    made = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    cast("Any", made[2]).weight = made[0].weight
    made[1].register_buffer("phase", torch.tensor([1 + 2j]))
    before = [p.detach().clone() for p in made.parameters()]
    model.cast(made, torch.float64)
    assert {p.dtype for p in made.parameters()} == {torch.float64}
    assert made[2].weight is made[0].weight
    assert [b.dtype for b in made[1].buffers()] == [
        *(torch.float64, torch.float64),
        *(torch.int64, torch.complex128),
    ]
    for now, then in zip(made.parameters(), before, strict=True):
        assert torch.equal(now, then.double())


def test_written_tensor_changes_the_fingerprint_of_its_module() -> None:
    owner = types.ModuleType("owner")
    cast("Any", owner).state = {"mean": torch.zeros(3)}
    before = fingerprint.of_module(owner)
    assert fingerprint.of_module(owner) == before
    cast("Any", owner).state["mean"].add_(1)
    assert fingerprint.of_module(owner) != before


@pytest.mark.parametrize("method", ["half", "double", "cpu"])
@pytest.mark.parametrize("is_outer", [False, True])
def test_conversion_after_wrapping_is_seen(method: str, *, is_outer: bool) -> None:
    inner = nn.Linear(1, 1)
    module = nn.Sequential(inner) if is_outer else inner
    with observe.observing() as seen:
        getattr(module, method)()
        assert not seen.applied_after_wrap
        seen.wrapped.append(_wrapped(inner))
        getattr(module, method)()
        assert seen.applied_after_wrap
    with observe.observing() as seen:
        seen.wrapped.append(_wrapped(inner))
    getattr(module, method)()
    assert not seen.applied_after_wrap


@pytest.mark.parametrize(("method", "is_seen"), [("half", True), ("float", False)])
def test_conversion_of_another_module_is_seen_where_it_rounds(
    method: str, *, is_seen: bool
) -> None:
    criterion = nn.BCELoss(weight=torch.ones(3))
    with observe.observing() as seen:
        seen.wrapped.append(_wrapped(nn.Linear(1, 1)))
        getattr(criterion, method)()
        assert seen.applied_after_wrap == is_seen


def _wrapped(module: nn.Module) -> wrapping.Wrapped:
    entries = [wrapping.Held(p, True, p.dtype, ()) for p in module.parameters()]
    ddp = cast("Any", None)  # any class
    return wrapping.Wrapped(module=ddp, parameters=entries)


def test_weights_written_in_backward_are_told_where_writes_are_counted() -> None:
    module = nn.Linear(1, 1)
    entry = wrapping.Held(module.weight, True, torch.float32, ())
    module.bias.register_hook(lambda _: _write(module.weight))
    with observe.observing() as seen:
        ddp = cast("Any", None)
        seen.wrapped.append(wrapping.Wrapped(module=ddp, parameters=[entry]))
        module(torch.ones(1, 1)).sum().backward()
    assert seen.updates_in_backward == (private.version(module.weight) > 0)


def _write(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor.mul_(2)


def test_hook_is_known_by_its_registration() -> None:
    module = nn.Linear(1, 1)
    module.weight.register_hook(lambda grad: grad)
    registered = {id(module.weight)}
    assert hooked_parameters(module, registered) == ["weight"]
    assert hooked_parameters(nn.Linear(1, 1), registered) == []


def test_hook_of_a_step_does_not_run_where_hooks_are_off() -> None:
    module = nn.Linear(1, 1)
    with without_tensor_hooks(module):
        module.weight.register_hook(lambda grad: grad * 5)
        module(torch.ones(1, 1)).sum().backward()
    assert module.weight.grad is not None
    assert module.weight.grad.item() == 1


@pytest.mark.parametrize(
    ("output", "count"),
    [
        (torch.ones(2), 1),
        ({"a": [torch.ones(1), torch.ones(2)]}, 2),
        ((object(), "text"), 0),
    ],
    ids=["tensor", "nested", "opaque"],
)
def test_tensors_of_an_output_are_found(output: Any, count: int) -> None:
    found = [leaf for leaf in private.leaves(output) if isinstance(leaf, Tensor)]
    assert len(found) == count


def test_direct_use_alone_is_scaled() -> None:
    module = nn.Linear(2, 1, bias=False)
    with scaled_direct_use(module, 3.0):
        (module(torch.ones(1, 2)).sum() + 10 * module.weight.sum()).backward()
    assert module.weight.grad is not None
    assert module.weight.grad.tolist() == [[31.0, 31.0]]


@pytest.mark.parametrize(
    "kind", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm]
)
def test_batch_norm_of_every_kind_is_known(kind: type[nn.Module]) -> None:
    made = nn.Sequential(nn.Linear(2, 2), kind(2))
    assert batch_norm.has_batch_norm(made)
    assert not batch_norm.has_batch_norm(nn.Sequential(nn.InstanceNorm1d(2)))
    frozen = batch_norm.apply(made, "frozen").train()
    assert [m.training for m in frozen.children()] == [True, False]


def test_calls_of_modules_with_buffers_are_counted() -> None:
    made = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    calls = surroundings.count_calls(made)
    made(torch.ones(4, 2))
    made(torch.ones(4, 2))
    assert calls == {"1": 2}


def test_simulated_wrapper_needs_no_private_method(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("_set_static_graph", "_register_builtin_comm_hook"):
        monkeypatch.delattr(DistributedDataParallel, name)
    with virtual_ddp.installed(World(2)) as wrappers:
        made = DistributedDataParallel(nn.Linear(1, 1))
        assert made(torch.ones(1, 1)).shape == (1, 1)
    assert [w.forwards for w in wrappers] == [1]


def test_torch_without_dynamo_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)
    monkeypatch.delitem(sys.modules, "ddpcheck.run.process.later", raising=False)
    importlib.import_module("ddpcheck.run.process.later")


def test_data_parallel_on_one_device_is_refused_without_its_broadcast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(private, "data_parallel_functions", None)
    with pytest.raises(NotImplementedError) as caught:
        DataParallelOnOneDevice(nn.Linear(1, 1), 2)
    assert str(caught.value) == (
        "torch.nn.parallel._functions.Broadcast, under which DataParallel is emulated "
        f"on one device, is not in torch {torch.__version__}"
    )


def test_sample_noise_is_refused_without_a_dispatch_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(private, "DISPATCHES", False)
    with pytest.raises(UsageError) as caught:
        SampleNoise(seed=0, step=0, shapes=None, start=0, size=1, total=1)
    assert str(caught.value) == (
        "ddpcheck: --noise sample does not work with this torch [option-value]\n"
        "  expected   torch.utils._python_dispatch.TorchDispatchMode\n"
        f"  found      torch {torch.__version__}, which has none\n"
        "  fix        install another torch, or leave the noise asis\n"
        "  more       ddpcheck --explain option-value"
    )
