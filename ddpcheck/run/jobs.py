"""The entry points that the engine calls by name in every rank."""

from ddpcheck.run.modes.candidate import candidate
from ddpcheck.run.modes.reference import reference
from ddpcheck.run.modes.simulated import simulated
from ddpcheck.run.process.loading import load_in_server

__all__ = ["candidate", "load_in_server", "reference", "simulated"]
