"""How a training step of one's own begins."""

from __future__ import annotations

STEP = """
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
"""
