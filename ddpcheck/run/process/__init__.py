"""Prepares a rank process: loads the target, isolates jobs, delays torch._dynamo.

Lives here: loading and isolating a target, torch._dynamo, torch.compile's settings.
Not here: how a process starts and ends (ranks/).
"""
