"""Evidence: what each link of the chain does, measured inside the ranks.

teacher    hooks that feed every module what the reference fed it, and cut the
network at the module outputs, so that links can be judged alone
reference  the reference's side: one process, step 0, everything recorded
rank       a rank's side: every module and the loss against the reference's
modules    what one module is like, from its own forward
evidence   what they say: plain data
"""
