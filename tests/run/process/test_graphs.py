"""Graphs of autograd: every node once, and none behind an end."""

from __future__ import annotations

from itertools import islice

import torch

from ddpcheck.run.process import graphs


def test_nodes_that_two_ways_reach_are_yielded_once() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    found = [node.name() for node in graphs.nodes([(y * y).grad_fn, y.grad_fn, None])]
    assert sorted(found) == [
        "MulBackward0",
        "MulBackward0",
        "torch::autograd::AccumulateGrad",
    ]


def test_nodes_at_an_end_and_behind_it_are_left_out() -> None:
    y = (torch.ones(2, requires_grad=True).exp() * 2).sum()
    found = [n.name() for n in graphs.nodes([y.grad_fn], ends={"ExpBackward0"})]
    assert found == ["SumBackward0", "MulBackward0"]


def test_a_large_graph_is_walked_no_further_than_asked() -> None:
    y = torch.ones(2, requires_grad=True)
    for _ in range(100):
        y = y + 1
    nodes = graphs.nodes([y.grad_fn])
    assert len(list(islice(nodes, 10))) == 10
    assert len(list(nodes)) == 91
