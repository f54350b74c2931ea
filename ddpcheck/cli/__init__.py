"""The `ddpcheck` command: arguments, one function per command, template and demo.

Lives here: what only the command line needs, torchrun's group included.
Not here: what a check does (checking/), and how a report reads (report/render/).
"""
