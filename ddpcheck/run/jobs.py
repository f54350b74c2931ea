"""The entry points that the engine calls by name in every rank."""

from ddpcheck.run.candidate import candidate
from ddpcheck.run.process.loading import load_in_server
from ddpcheck.run.reference import reference
from ddpcheck.run.simulated import simulated

__all__ = ["candidate", "load_in_server", "reference", "simulated"]
