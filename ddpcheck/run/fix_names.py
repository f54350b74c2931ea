"""Names of interventions, as a `RunSpec` holds them; see run/fixes.py."""

from __future__ import annotations


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
