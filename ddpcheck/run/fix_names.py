"""Names of interventions, as a `RunSpec` holds them; see run/fixes/apply.py."""

from __future__ import annotations

from collections.abc import Iterable

GLOBAL_DRAWS = "noise.global_draws"
ADDENDS = "target.addends"


def argument(fixes: tuple[str, ...], name: str) -> str | None:
    """Returns what follows "name:" in the fixes, "" for a bare name, None without."""
    for fix in fixes:
        head, _, rest = fix.partition(":")
        if head == name:
            return rest
    return None


def arguments(fixes: tuple[str, ...], name: str) -> set[str]:
    """Returns what all fixes "name:a,b,..." name, together."""
    found = [f.partition(":")[2] for f in fixes if f.startswith(f"{name}:")]
    return {part for rest in found for part in rest.split(",")}


def global_draws(shapes: Iterable[tuple[int, ...]]) -> str:
    """Returns the fix that draws as one process does, which draws these shapes."""
    return f"{GLOBAL_DRAWS}:{','.join(dict.fromkeys(map(shape_name, shapes)))}"


def shape_name(shape: tuple[int, ...]) -> str:
    """Returns "8x3" for (8, 3)."""
    return "x".join(map(str, shape))
