"""All modes, by name. A new one is a file in this folder and a line here."""

from ddpcheck.run.modes.averaged import AVERAGED
from ddpcheck.run.modes.ddp import DDP
from ddpcheck.run.modes.dp import DP
from ddpcheck.run.modes.mode import Mode
from ddpcheck.run.modes.ps import PS
from ddpcheck.run.modes.sim import SIM
from ddpcheck.run.modes.single import SINGLE

MODES: tuple[Mode, ...] = (
    SINGLE,
    DP,
    DDP,
    PS,
    SIM,
    AVERAGED,
)
CHOICES = tuple(mode.name for mode in MODES if mode.is_choice)  # of --modes
_BY_NAME = {mode.name: mode for mode in MODES}


def mode_of(name: str) -> Mode:
    """Returns the mode of this name."""
    return _BY_NAME[name]
