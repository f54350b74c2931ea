"""`digits_conv.py` with batch norm synchronised over the ranks."""

from __future__ import annotations

from digits_conv import batch, loss, model, optimizer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["batch", "loss", "model", "optimizer", "wrap"]


def wrap(bare: nn.Module) -> nn.Module:
    """Returns what a rank trains: statistics over the global batch."""
    return DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(bare))
