"""Numbers and names as the facts of findings show them."""

from __future__ import annotations

from collections.abc import Iterable

from ddpcheck.errors.problem import cut
from ddpcheck.report.data import Run

# The first line of code that multiplies by W: one process has no group.
WORLD = "world = dist.get_world_size() if dist.is_initialized() else 1\n"

_MAX_NUMBERS = 8


def in_group(*lines: str) -> str:
    """Returns code that runs these lines on ranks only.

    >>> print(in_group("dist.all_reduce(count)"))
    if dist.is_initialized():  # one process has no group
        dist.all_reduce(count)
    """
    first = "if dist.is_initialized():  # one process has no group"
    return "\n".join((first, *(f"    {line}" for line in lines)))


# Gathers the rows of all ranks, with their gradients.
GATHER_ROWS = (
    "gather = torch.distributed.nn.functional.all_gather\n"
    "rows = x  # of all ranks, for what the rows of x are related to\n"
    + in_group("rows = torch.cat(gather(x.contiguous()))")
)


def number(value: float, digits: int = 3) -> str:
    """Returns 3 significant digits, or more, without a trailing ".0".

    >>> number(0.5), number(1.33333), number(2.0)
    ('0.5', '1.33', '2')
    """
    return f"{value:.{digits}g}"


def worst_of(run: Run) -> list[str]:
    """Returns a sentence on the worst tensor of what is judged, none without one."""
    worst = run.worst
    if worst is None:
        return []
    size = number(worst.rel_diff)
    return [f"worst: {worst.name} in step {worst.step + 1}, relative difference {size}"]


def listed(values: Iterable[float], digits: int = 3) -> str:
    """Returns numbers as a list, cut at 8.

    >>> listed([1.6, 2.66667])
    '1.6, 2.67'
    """
    shown = [number(v, digits) for v in values]
    rest = len(shown) - _MAX_NUMBERS
    more = f" and {rest} more" if rest > 0 else ""
    return ", ".join(shown[:_MAX_NUMBERS]) + more


def names(items: Iterable[str], limit: int = 3) -> str:
    """Returns names in order, cut at `limit`.

    >>> names(["a", "b", "c", "d"])
    'a, b, c and 1 more'
    """
    return cut(list(items), limit)


def module(name: str) -> str:
    """Returns how a module is called in a sentence.

    >>> module(""), module("layer1.bn")
    ("the model's own forward", 'layer1.bn')
    """
    return name or "the model's own forward"


def output(key: str) -> str:
    """Returns how a cut is called in a sentence.

    >>> output("gate#0"), output("#0/1")
    ('gate', "output 1 of the model's own forward")
    """
    name, _, call = key.partition("#")
    path = call.partition("/")[2]
    return f"output {path} of {module(name)}" if path else module(name)


def times(count: int) -> str:
    """Returns how often something happened.

    >>> times(1), times(3)
    ('once', '3 times')
    """
    return "once" if count == 1 else f"{count} times"
