"""How every renderer writes a number: three digits, and rounding that does not lie."""

from __future__ import annotations

import math
from decimal import ROUND_FLOOR, Context

_FLOOR = Context(prec=3, rounding=ROUND_FLOOR)


def number(value: float) -> str:
    """Returns `value` in three significant digits; "0" means exactly zero.

    Special values: "nan", "inf", "-inf"; negative zero is "0".

    >>> number(0.33349), number(4e13), number(1e-16), number(-0.0)
    ('0.333', '4e+13', '1e-16', '0')
    """
    return "0" if value == 0 else f"{value:.3g}"


def excess(value: float) -> str:
    """Returns an excess as text; what fails (above 1) never reads as 1.

    >>> excess(1.0), excess(1.0001), excess(1.006), excess(float("nan"))
    ('1', '>1', '1.01', 'nan')
    """
    text = number(value)
    return ">1" if value > 1 and text == "1" else text


def at_least(value: float) -> str:
    """Returns `value` rounded down, for sentences such as "at or above 9.99e+12".

    >>> at_least(9.999e12), at_least(1.0e13)
    ('9.99e+12', '1e+13')
    """
    if value == 0 or not math.isfinite(value):
        return number(value)
    return number(float(_FLOOR.create_decimal_from_float(value)))


def count(value: int) -> str:
    """Returns an exact integer with thousands separated.

    >>> count(1234567)
    '1,234,567'
    """
    return f"{value:,}"


def counted(value: int, noun: str) -> str:
    """Returns a number of things.

    >>> counted(1, "run"), counted(2048, "candidate fix")
    ('1 run', '2,048 candidate fixes')
    """
    ending = "" if value == 1 else "es" if noun.endswith(("s", "x")) else "s"
    return f"{count(value)} {noun}{ending}"


def rank_key(value: float) -> tuple[bool, float]:
    """Returns a key that sorts excesses, NaN above infinity.

    >>> sorted([float("inf"), float("nan"), 2.0], key=rank_key)
    [2.0, inf, nan]
    """
    undefined = math.isnan(value)
    return undefined, 0.0 if undefined else value
