"""From a divergent run to its causes, each proven by a run with its fix.

loop           fix the first link, run again, go on until nothing diverges
causes         what rules propose, and what a run with a fix says of one
trials         runs with the interventions of proposals, and what is left then
fallbacks      what a rule falls back on where its own fix does not mend the run
side_effects   buffers that are wrong by a fix alone
choosing       which fix says more, and what several say together
parts          a loss that is wrong in several ways, output by output
addends        the same, addend by addend of what it sums
pairs          two causes, one looked at where the other is fixed
hidden_causes  a cause that the fix of another one hides
hook_weights   communication hooks that weigh the ranks
update_alone   what differs where every update has the right gradients
last_resort    what is tried where nothing else explains a run

findings       causes and what their runs said, as the report's findings
magnitude      how much a divergence matters, in words a user can act on
"""
