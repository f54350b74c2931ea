"""Imports what of torch makes a temporary folder when it is imported.

Older versions (2.6) do so for torch.distributed.nn, and remove the folder when Python
ends. A rank ends by a signal: what its target imports would be left on the disk. The
fork server imports this before the target, with its temporary files in its own folder.
"""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path

import torch

_SOURCE = Path(torch.__file__).parent / "distributed/nn/jit/instantiator.py"


def makes_folder(source: Path) -> bool:
    """Returns whether importing the module of this source makes a temporary folder."""
    try:
        return "TemporaryDirectory(" in source.read_text(encoding="utf-8")
    except OSError:  # a torch without this module
        return False


if makes_folder(_SOURCE):
    with contextlib.suppress(ImportError):  # a torch without distributed training
        importlib.import_module("torch.distributed.nn")
