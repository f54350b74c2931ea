"""The pytest plugin: its options, the fixture `ddpcheck`, target files as tests.

Lives here: what only pytest needs.
Not here: the check itself (api.py, checking/).
"""
