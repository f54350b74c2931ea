"""Pages of numeric/, unknown, accept and baseline: what is no bug's cause."""

from __future__ import annotations

PAGES = {
    "accept": """
An accepted finding covers the runs that it explains, and nothing worse.

    ddpcheck mymodel.py --accept norm/local-batch-stats="by design"

Or `accept` in the target file or in [tool.ddpcheck] of pyproject.toml, accept= in
Python, --ddpcheck-accept under pytest, where a covered run is an xfail. They add up.

    what a run has                               does it pass?
    the accepted cause alone                     yes
    another cause, too                           no, until that is accepted as well
    a difference that stays with the fix         no: the cause is unknown
    no known cause                               no: unknown cannot be accepted
    NaN or an infinity on a rank                 by loss/empty-shard alone
    a rank that raises, dies or hangs            by a cause that is about that, below
    ranks that disagree                          where a run with the fix ends that
    the cause, at another world size             where the fix mends the run there, too
    the cause, in another module, file or line   yes
    the cause, ten times as large                yes

An acceptance is a slug: it knows neither a place nor a size, and cannot notice that
either changed. A baseline does: ddpcheck --explain baseline.

Where anything is accepted, a run that the fixes found elsewhere do not mend is
diagnosed by itself, which takes more runs. DataParallel's run is compared with DDP's
at that world size. What no run proves passes with the warning "accepted without a
proof": with --no-fix, for simulated ranks, for a cause whose fix cannot be run.

A slug that --rules does not list is an error. One that is not found is a warning.

Causes that are about ranks that fail: compile/ddp-optimizer, data/uneven-batches,
ddp/forward-bypassed, ddp/frozen-after-wrap, ddp/param-replaced-after-wrap,
dp/replica-parameters-empty, dp/scalar-gather, dp/scatter-semantics,
dp/variable-length-gather, graph/opaque-output, graph/output-unused,
graph/rank-dependent-branch, graph/reentrant-checkpoint, graph/shared-parameter,
graph/skipped-backward, graph/static-graph-violated, graph/unused-parameter,
state/inplace-buffer-version, sync/collective-mismatch, sync/rank-died,
sync/rank-hung, sync/rank-raised, sync/static-graph-no-sync
""",
    "baseline": """
A baseline covers what an earlier report of the same target has, run by run.

    ddpcheck mymodel.py --json baseline.json
    ddpcheck mymodel.py --baseline baseline.json

    what a run has                               does it pass?
    the finding that this run had                yes
    another finding, or one of another run       no
    no such run in the baseline: other mode,
    world size, batch norm, loss, noise,
    dtype or steps                               no
    the finding, in another module or file       no
    the finding, on another line of the file     yes: lines move
    more than ten times the excess               no, counted in the same tolerance
    a tensor that did not differ, far off        no
    NaN or an infinity where all was finite      no
    a rank that fails, and no rank did so        no
    ranks that disagree, and agreed              no
    an unknown cause                             if the run had it, in the same words
    less than it had                             yes, and the report says what is gone

What does not pass is a finding that says why. A baseline that was not checked, or has
no runs, covers nothing. Findings that --accept covers pass besides.
""",
    "numeric/adam-amplification": """
Rounding that the optimizer blows up, no difference of training.

Adam divides a gradient by its own size. Where the true gradient is zero (a bias
before a norm, the bias of attention's keys), what is left is rounding, and the weight
moves by a whole learning rate in a direction that rounding decides.

It is measured, not assumed: gradients agree within tolerance, and one process on a
permuted batch, the same mathematics in another order, moves the same weights apart as
far. Such weights are judged by 32 times that distance, and so are buffers and untrained
weights that follow them (a running mean behind a bias, a teacher's copy), where one
rounding of all weights moves these as well. All others are judged as before, and the
ranks are compared with each other as strictly as ever.

References
https://arxiv.org/abs/1412.6980
""",
    "numeric/nondeterministic-kernel": """
The same process does not compute the same twice.

Before any rank is judged, one process is run again on a permuted batch. Where that
differs by more than rounding can, the report says so beside the tolerance; where it
does so even on the same batch with the same seed, the finding is rng/stochastic-layer.

On GPUs atomic additions and cuDNN's choice of algorithms are the usual reason:
torch.use_deterministic_algorithms(True) shows which operation it is. The report warns
of settings under which results may differ.

References
https://docs.pytorch.org/docs/stable/notes/randomness.html
""",
    "numeric/reassociation": """
Sums in another order: equal up to the measured noise floor.

A sum over shards rounds in other places than a sum over the batch. In float64 that is
1e-16 to 1e-13 relative, in float32 1e-7 to 1e-5. Where runs exceed the default
tolerance, one process is repeated on a permuted batch with a rescaled backward: what
differs then is rounding by construction, and 32 times that is the tolerance; where a
float64 model computes gradients by way of float32, at least 32 x 2**-24, as products
round by how many rows they have. The report's first lines say which tolerance was used
and where it comes from.

References
https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html
""",
    "numeric/scale-invariant-optimizer": """
A gradient of the wrong scale that the optimizer divides out again: still a bug.

Adam, RMSprop and their kin divide a gradient by its own size, so a run whose gradients
are all 1/W of what they should be trains almost alike. Clipping by norm, weight decay
that is added to the gradient, epsilon, and the next change of optimizer do see it.
Gradients are compared for this reason, not weights alone; the finding names the
factor and the learning rate by which plain SGD would train alike.

References
https://github.com/pytorch/pytorch/issues/5778
""",
    "unknown": """
Ranks differ from one process, and no rule knows why.

The divergence is as real as any other: it was measured, by the same criterion. What is
not known is the cause: no rule's evidence was seen, the fixes that were tried did not
remove it, or something still differs with those in force that removed the rest.

The facts say where to look: the link that breaks first (data, forward, loss, backward,
reduce, update), the first step and tensors that differ, and whether ranks agree. Then
run reproduce.py, the smallest run that still differs, and take parts away from it; or
compare the tensors of one step on a rank with those of one process on the same rows.
""",
}
