"""Imports the module of torch that creates a temporary folder at its import.

torch 2.6 does so for torch.distributed.nn, and removes the folder when Python exits. A
rank exits without that, so the folder would stay on disk. The fork server imports this
module before the target, with the session's folder for temporary files.
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
