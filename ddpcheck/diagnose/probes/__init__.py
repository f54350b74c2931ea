"""Evidence: what each link of the chain does, measured inside the ranks.

reference  the reference's side: one process, the first wrong batch, all recorded
rank       a rank's side: every module and the loss against the reference's;
           calls: what a module is fed with there, and what it makes of that
training   one training step of a probe; earlier: those before it
evidence   what they say: plain data

How one link is judged alone:
teacher    hooks that feed every module what the reference fed it, and cut the
           network at module outputs; attached: cuts that stay in the graph
cuts       which outputs one process's model is cut at, and their values
kept       what a step remembers from call to call, put back for every pass
shortcut   passes without the modules behind which no gradient of the loss begins
flow       which cut quantities others are computed from

What is measured:
gradients  a rank's gradients at the cuts; fits: factors, and what they leave
addends    the same of each addend of the loss
coupling   whether the loss at some samples depends on others; order: on their places
doubled    the batch taken twice, which tells sums from means
injected   gradients that the model's own backward adds, whatever the loss
group      whether the loss is another one where no group is in sight
span       whether one process's gradient is a combination of the ranks'
modules    what one module is like, from its own forward;
           with_buffers: whether it differs by what is in its buffers alone
moving     whether collectives have to do with rows of samples
past       calls that do not come through the wrapper
written    which buffers a forward writes

Which rows are whose:
micro      micro-batches; sorting: a step that sorts its samples
segments   kinds of rows that lie one after the other in a tensor
"""
