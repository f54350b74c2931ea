"""Gradients averaged by hand are the mean over ranks, however they are cut."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from torch import Tensor, nn

from ddpcheck.ranks.messages import Job
from ddpcheck.ranks.pool import Pool
from ddpcheck.run import private
from ddpcheck.run.model import averaged
from ddpcheck.run.model.averaged import Window

# In the order of their names: a, b, half, late, phase, rows, turned, unused, whole.
# Rank 0 gives the numbers 0, 1, 2, ..., rank 1 twice as much: 1.5 times is the mean.
MEAN = {
    "a": [[0.0, 1.5, 3.0], [4.5, 6.0, 7.5]],
    "b": [0.0, 1.5, 3.0, 4.5],
    "half": [0.0, 1.5, 3.0],
    "late": [0.0, 1.0],  # rank 1 alone has 0, 2
    "phase": [0j, 1.5 + 3j],
    "rows": [[0.0, 1.5], [3.0, 4.5], [6.0, 7.5], [9.0, 10.5]],
    "turned": [[0.0, 4.5], [1.5, 6.0], [3.0, 7.5]],
    "unused": None,
    "whole": [0.0, 1.5, 3.0, 4.5, 6.0],
}


@pytest.mark.parametrize(
    ("bucket", "reduced"),
    [
        # First whether there is one, of 9 parameters; a complex number counts twice.
        (1 << 20, [9, 10, 3, 2 + 4 + 8 + 6 + 5]),
        (6, [9, 6, 4, 3, 2 + 4, 8, 6, 5]),
        (1, [9, 6, 4, 3, 2, 4, 8, 6, 5]),
    ],
)
def test_buckets_change_no_mean(bucket: int, reduced: list[int], pool: Pool) -> None:
    job = Job(function="tests.run.jobs:averaged_by_hand", arguments={"bucket": bucket})
    for outcome in pool.run(job, 2):
        assert outcome.value == {"gradients": MEAN, "reduced": reduced}


class Net(nn.Module):
    """Two heads, and whether it is called outside no_sync."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 1), nn.Linear(2, 1)
        self.require_backward_grad_sync = True


@pytest.fixture
def net(seeded: None) -> Net:  # noqa: ARG001
    return Net()


def _pass(net: Net, window: Window, head: str, *returned: str) -> dict[str, bool]:
    """Runs forward and backward through one head; returns the awaited parameters."""
    parameters = dict(net.named_parameters())
    found = window.before_forward(net, parameters)
    x = parameters["a.weight"].new_ones(3, 2)
    outputs: dict[str, Tensor] = {n: getattr(net, n)(x) for n in {head, *returned}}
    window.after_forward(net, [outputs[name] for name in (head, *returned)])
    before = averaged.gradients(parameters)
    outputs[head].sum().backward()
    window.after_backward(before, parameters)
    return found


def _ended(net: Net, window: Window) -> dict[str, bool]:
    return window.take(dict(net.named_parameters()))


def test_each_backward_is_waited_for_though_another_reaches_the_parameter(
    net: Net,
) -> None:
    window = Window()
    assert _pass(net, window, "a") == {}
    assert _pass(net, window, "b") == {"b.weight": False, "b.bias": False}
    assert _ended(net, window) == {"a.weight": False, "a.bias": False}
    assert _pass(net, window, "b", "a") == {}  # the optimizer has stepped
    assert _ended(net, window) == {"a.weight": True, "a.bias": True}


def test_gradients_that_were_there_before_do_not_count(net: Net) -> None:
    window = Window()
    for head in ("a", "b"):
        getattr(net, head)(next(net.parameters()).new_ones(1, 2)).sum().backward()
    _pass(net, window, "b")
    assert _ended(net, window) == {"a.weight": False, "a.bias": False}


def test_frozen_parameters_are_not_waited_for(net: Net) -> None:
    window = Window()
    net.a.requires_grad_(False)
    _pass(net, window, "b")
    assert _ended(net, window) == {}


def test_nothing_is_waited_for_in_no_sync(net: Net) -> None:
    window = Window()
    net.require_backward_grad_sync = False
    _pass(net, window, "a")
    net.require_backward_grad_sync = True
    assert _pass(net, window, "a") == {}
    assert _ended(net, window) == {"b.weight": False, "b.bias": False}


def test_wrapper_that_is_called_again_takes_no_output_of_another(net: Net) -> None:
    window, parameters = Window(), dict(net.named_parameters())
    x = parameters["a.weight"].new_ones(3, 2)
    heads = [cast("Any", head) for head in (net.a, net.b)]
    outputs = []
    for head in heads:
        head.require_backward_grad_sync = True
        window.before_forward(head, parameters)
        outputs.append(head(x))
        window.after_forward(head, outputs[-1])
    outputs[0].sum().backward()
    window.after_backward({}, parameters)
    assert window.before_forward(heads[0], parameters) == {}
    assert _ended(net, window) == {"b.weight": True, "b.bias": True}


def test_without_versions_only_a_gradient_that_is_none_is_left_out(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private, "COUNTS_VERSIONS", False)
    window = Window()
    assert _pass(net, window, "a") == {}
    assert _pass(net, window, "b") == {"b.weight": False, "b.bias": False}
    assert _ended(net, window) == {}


def test_wrapper_takes_what_lightning_tells_its_reducer(net: Net) -> None:
    ddp = SimpleNamespace(module=net, broadcast_buffers=True, static_graph=False)
    wrapper: Any = averaged.PlainWrapper(cast("Any", ddp))
    # In manual optimization, before a backward, and when the strategy ends.
    wrapper.reducer._rebuild_buckets()  # noqa: SLF001
    wrapper.reducer.prepare_for_backward([])
    assert wrapper._get_ddp_logging_data() == {}  # noqa: SLF001
