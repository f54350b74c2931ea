"""What the fork server imports last: only ranks that train have a use for it.

What is imported on first use would be imported by each rank.
"""

from __future__ import annotations

import encodings.ascii  # noqa: F401 (of sockets)

import numpy.random  # noqa: F401 (numpy imports it on first use, too)
import torch

from ddpcheck.run.process import ahead

torch.get_default_device()  # imports what every job asks
ahead.prepare()
