"""Ranks that one process plays one after another: their DDP, group and state."""
