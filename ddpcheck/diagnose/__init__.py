"""placeholder"""
from dataclasses import dataclass, field
@dataclass
class Diagnosis:
    runs: list = field(default_factory=list)
    findings: list = field(default_factory=list)
    not_compared: list = field(default_factory=list)
    warnings: list = field(default_factory=list)
def diagnose(session, outcomes, runs, limit, options, progress):
    return Diagnosis(runs=runs)
