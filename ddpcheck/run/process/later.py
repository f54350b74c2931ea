"""Imports that the fork server does last, for ranks that train.

Otherwise each rank would import them at first use.
"""

from __future__ import annotations

import encodings.ascii  # noqa: F401 (of sockets)

import numpy.random  # noqa: F401 (numpy imports it on first use, too)
import torch

from ddpcheck.run.process import ahead

torch.get_default_device()  # imports what every job asks
ahead.prepare()
