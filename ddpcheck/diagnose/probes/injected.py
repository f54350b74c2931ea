"""Gradients that a model makes by itself: a term of the loss which its backward adds.

An autograd function may hand its input on and, in its backward, give another input a
gradient that does not follow the output's: so an auxiliary loss is trained that no
loss function has. With gradients of zeros at the model's outputs, such parameters
still get one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction

from ddpcheck.compare import tree
from ddpcheck.diagnose.probes.evidence import Injected
from ddpcheck.run.model import contents
from ddpcheck.run.model.names import shortener

# By the names of their nodes: what makes probabilities of scores.
_OF_SCORES = ("SoftmaxBackward", "LogSoftmaxBackward", "SigmoidBackward")


def of(model: nn.Module, output: Any) -> Injected:
    """Returns what the model adds to the gradients, given what a call of it returned.

    The graph of the output stays as it is.
    """
    outputs = [t for t in tree.held(output) if t.requires_grad]
    behind = _nodes(t.grad_fn for t in outputs)
    own = [n for n in behind if isinstance(n, BackwardCFunction)]  # in Python
    if not own:
        return Injected()
    named = {n: p for n, p in contents.named_parameters(model) if p.requires_grad}
    try:
        found = torch.autograd.grad(
            outputs,
            list(named.values()),
            [torch.zeros_like(t) for t in outputs],
            retain_graph=True,
            allow_unused=True,
        )
    except Exception:  # noqa: BLE001 (user code; checkpoints refuse to be asked)
        return Injected()
    short = shortener(model)
    names = [
        short(name)
        for name, grad in zip(named, found, strict=True)
        if grad is not None and bool(grad.to_dense().any())
    ]
    return Injected(names=tuple(names), of_scores=bool(names) and _are_of_scores(own))


def _are_of_scores(own: Iterable[Any]) -> bool:
    """Returns whether one of the functions takes what is made of probabilities."""
    given = (n for node in own for n, _ in node.next_functions)
    return any(type(n).__name__.startswith(_OF_SCORES) for n in _nodes(given))


def _nodes(begin: Iterable[Any]) -> Iterator[Any]:
    """Yields the nodes of a graph, each once."""
    waiting = [node for node in begin if node is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        further = {n for n, _ in node.next_functions if n is not None} - seen
        seen |= further
        waiting += further
