"""Pages of numeric/ and unknown: what reports give that is no bug's cause."""

from __future__ import annotations

PAGES = {
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
