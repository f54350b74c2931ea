"""ddpcheck: is data-parallel training the same as one process on the global batch?"""
