"""What prepares a process of the engine: the target, its imports, global state.

Lives here: loading and isolating a target, torch._dynamo, torch.compile's settings.
Not here: how a process is started and ends (ranks/).
"""
