"""Imported by a fork server before ddpcheck.run: its ranks lack private names.

Modules that derive classes from private names lack them too.
"""

from __future__ import annotations

from ddpcheck.run import private
from tests.run import without

_OTHER = without.found_nothing()
for _name in without.NAMES:
    setattr(private, _name, getattr(_OTHER, _name))
