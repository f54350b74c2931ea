"""What the fork server imports last: only ranks that train have a use for it.

DistributedDataParallel imports torch._dynamo; a torch without it has nothing to wait
for.
"""

from __future__ import annotations

import importlib

try:
    importlib.import_module("torch._dynamo")
except ModuleNotFoundError as error:
    if error.name != "torch._dynamo":
        raise
