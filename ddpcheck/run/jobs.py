"""The entry points that the engine calls by name in every rank."""

from ddpcheck.run.modes.jobs.candidate import candidate
from ddpcheck.run.modes.jobs.reference import reference
from ddpcheck.run.modes.jobs.simulated import simulated
from ddpcheck.run.process.loading import load_in_server

__all__ = ["candidate", "load_in_server", "reference", "simulated"]
