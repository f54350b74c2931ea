"""The entry points that the rank engine calls by name.

`load_in_server` runs in the fork server, `reference` in a process of its own, the
others in every rank.
"""

from ddpcheck.run.modes.jobs.candidate import candidate
from ddpcheck.run.modes.jobs.reference import reference
from ddpcheck.run.modes.jobs.simulated import simulated
from ddpcheck.run.process.loading import load_in_server

__all__ = ["candidate", "load_in_server", "reference", "simulated"]
