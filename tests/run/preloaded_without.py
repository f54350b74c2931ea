"""Imported by a fork server before the rest of ddpcheck.run: all its ranks go without.

Modules that derive classes from what they find have found nothing, too.
"""

from __future__ import annotations

from ddpcheck.run import private
from tests.run import without

_OTHER = without.found_nothing()
for _name in without.NAMES:
    setattr(private, _name, getattr(_OTHER, _name))
