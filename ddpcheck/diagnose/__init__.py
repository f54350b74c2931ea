"""From a divergence to its cause, proven by an intervention, or an honest unknown.

Lives here: engine.py, which searches; facts/, rules/ and search/; probes/ in the ranks.
Not here: interventions (run/interventions/), pages of rules (report/pages/).

Words:
    link, chain: a step is judged in six links: data, forward, loss, backward, reduce,
        update. The first that differs is looked at first.
    cut: a tensor of the chain, such as an output, at which a rank gets the value of the
        single-process run, so that what follows is judged alone.
    ratio W: a loss is right if its gradient at a cut is W times the single-process one,
        with W ranks: DDP divides by W afterwards.
    averaged by hand: the run with gradients averaged explicitly instead of by DDP.
    fact: what a rule reads from the case; it runs nothing.
    experiment: a named variation of the run that a rule asks for; the search makes it.
    intervention: a change of the run, never of the user's file, that proves a cause.
    substitution: an intervention that gives a rank single-process values. It mends
        almost anything, so the cause is located, not fixed.
    component: outputs or addends of the loss that are wrong in the same way.
    firm, speculative: a proposal with evidence, and one that only a run can show.
    wide: a fix that gives a loss or a module the samples of all ranks.
"""
