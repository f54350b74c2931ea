"""The data verdict of a script: what its ranks drew, against the single process.

Lives here: streams.py (events to passes), judge.py, schedules.py (findings), table.py.
Not here: the recording of events (run/script/), the check (checking/scripts.py).
"""

from ddpcheck.diagnose.script_data.judge import findings, not_compared
from ddpcheck.diagnose.script_data.schedules import apart, follows_passes, unfinished
from ddpcheck.diagnose.script_data.table import shares_passes, table

__all__ = [
    "apart",
    "findings",
    "follows_passes",
    "not_compared",
    "shares_passes",
    "table",
    "unfinished",
]
