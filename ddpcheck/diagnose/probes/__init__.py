"""Evidence: what each link of the chain does, measured inside the ranks.

teacher    hooks that feed every module what the reference fed it, and cut the
network at the module outputs, so that links can be judged alone
segments   kinds of rows that lie one after the other in a tensor
reference  the reference's side: one process, the first wrong batch, all recorded
coupling   whether the loss at some samples depends on the outputs of others
rank       a rank's side: every module and the loss against the reference's
gradients  a rank's gradients at the cuts; fits: factors, and what they leave
group      whether the loss is another one where no group is in sight
modules    what one module is like, from its own forward
evidence   what they say: plain data
"""
