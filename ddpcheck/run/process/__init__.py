"""What prepares a process of the engine: the target, its imports, global state."""
