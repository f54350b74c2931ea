"""The command as a user runs it."""
