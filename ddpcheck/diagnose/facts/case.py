"""All that is known of one divergent run, as questions that rules ask."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ddpcheck.compare.tolerance import DEFAULT_RTOL
from ddpcheck.diagnose.facts.experiments import Experiment, WantedError
from ddpcheck.diagnose.probes.evidence import (
    Couplings,
    Cut,
    ModuleCall,
    RankEvidence,
    StepEvidence,
    combined,
)
from ddpcheck.diagnose.proposal import Proposal
from ddpcheck.report.data import Quantity, Run
from ddpcheck.run.facts import RankFacts, ReferenceFacts
from ddpcheck.run.intervention import GlobalLoss, found
from ddpcheck.run.session.agreement import ranks_differ
from ddpcheck.run.spec import Defect, RunOutcome

__all__ = ["Case", "Proposal", "are_shares", "returns_other_rows"]

# A ratio or residual this close is the same: rounding is 1e-9 at most, causes are 1e-3
# at least. The tolerance of the check takes its place where that is larger.
_CLOSE = 1e-6
_LARGEST_CLOSE = 1e-3
# In other dtypes: half of a ratio is another ratio, however coarse the rounding.
_LARGEST_COARSE = 0.2


@dataclass(slots=True, kw_only=True)
class Case:
    """One divergent data-parallel run with the results of probes and other runs.

    `run` and `outcome`: the divergent run. `by_hand`: the same with gradients averaged
    by hand, so without DDP's reducer. `probed`: what the probes saw of step 0.
    """

    run: Run
    outcome: RunOutcome
    by_hand: Run
    by_hand_outcome: RunOutcome
    watched: RunOutcome | None = None  # the run once more, with the samples recorded
    probed: StepEvidence | None
    rtol: float
    facts: ReferenceFacts  # of the reference
    repeats: bool = True  # the single-process run gives the same with other seeds
    # Results of the experiments that rules have asked for.
    experiments: dict[Experiment, Run] = field(default_factory=dict)
    probe_failed: str = ""  # why `probed` is None
    is_part: bool = False  # a part of the loss alone: search/components.py

    @property
    def probed_ranks(self) -> tuple[RankEvidence, ...]:
        """What each rank measured, nothing without probes."""
        return self.probed.ranks if self.probed else ()

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.run.world_size

    def result(self, experiment: Experiment) -> Run:
        """Returns the run of an experiment.

        Raises:
            WantedError: the search has not made it; it does, and asks again.
        """
        if experiment not in self.experiments:
            raise WantedError(experiment)
        return self.experiments[experiment]

    @property
    def num_draws(self) -> int:
        """Known number of random operations in the single-process run's first step.

        Those of data loaders are not counted.
        """
        counted = self.probed.reference.draws if self.probed else None
        return counted or int(self.facts["draws"])

    @property
    def close(self) -> float:
        """Relative difference below which two ratios are the same."""
        # In float64 rounding may grow with the updates, but probes use the first step.
        is_fine = self.outcome.spec.dtype == "float64"
        most = _LARGEST_CLOSE if is_fine else _LARGEST_COARSE
        return min(max(_CLOSE, 10 * self.rtol), most)

    @property
    def least_coupling(self) -> float:
        """Relative change of a gradient above which it depends on other samples.

        Rounding is below it. The loss runs on the same outputs, without the model's
        noise (such as TF32).
        """
        return min(self.close, max(_CLOSE, 10 * DEFAULT_RTOL[self.outcome.spec.dtype]))

    @property
    def reduce_is_broken(self) -> bool:
        """Whether DDP's gradients differ from the mean of the local ones."""
        if self.run.faults and not self.by_hand.faults:
            return True
        if not self.run.ranks_agree and self.by_hand.ranks_agree:
            return True
        if self.by_hand.verdict == "equivalent" and self.run.verdict == "divergent":
            return True
        # After the first wrong gradients weights may differ because of another cause.
        step, weights = self.first_broken("gradients"), self.first_broken("weights")
        if step is None or (weights is not None and weights < step):
            step = 0
        of_ddp, of_hand = (
            ranks_differ(outcome, "gradients", step, self.rtol)
            for outcome in (self.outcome, self.by_hand_outcome)
        )
        return of_ddp and not of_hand

    @property
    def rest_is_broken(self) -> bool:
        """Whether something is wrong that averaging by hand does not fix."""
        return self.by_hand.verdict != "equivalent"

    def modules(self) -> list[ModuleCall]:
        """Returns the worst call over ranks of every module, in call order."""
        return self.probed.modules() if self.probed else []

    def defects(self) -> list[Defect]:
        """Returns collectives that returned something else than they were asked for."""
        return self.probed.defects() if self.probed else []

    def diverging(self) -> list[ModuleCall]:
        """Returns the module calls whose own computation differs, in call order.

        A module gets the reference's input and its submodules return the reference's
        outputs, so a difference is its own: in its output, or in what its code passes
        to a submodule. Differences of noise are left out. A difference need not matter:
        the result of a zero-initialised branch reaches no output at first.
        """
        if any(f.get("start_differs") for f in self.ranks):
            return []
        found: dict[str, ModuleCall] = {}
        norms = {m.name: m for m in self.modules() if m.is_batch_norm or m.normalises}
        writers = {m.name for m in self.modules() if m.writes_parameters}
        for m in self.modules():
            if m.input_diff > self.close and m.remakes_input:
                found.setdefault(m.name, dataclasses.replace(m, rel_diff=m.input_diff))
            elif m.input_diff > self.close and (m.caller or m.name):
                # A norm may hold an activation, which is called with its rows.
                own = norms.get(m.caller)
                caller = dataclasses.replace(
                    own or m,
                    name=m.caller,
                    kind=m.caller_kind,
                    rel_diff=m.input_diff,
                    is_batch_norm=own is not None and own.is_batch_norm,
                    normalises=own is not None,
                    writes_buffers=own is not None and own.writes_buffers,
                    writes_parameters=m.caller in writers,
                    collectives=own.collectives if own else 0,
                )
                found.setdefault(m.caller, caller)
            if m.rel_diff is not None and m.rel_diff > self.close:
                found.setdefault(m.name, m)
        noisy = self.probed.noisy(self.outcome.spec) if self.probed else ()
        return [found[name] for name in found if name not in noisy]

    @property
    def forward_is_sound(self) -> bool:
        """Whether no module is known to make the first step's outputs differ."""
        return self.outputs_agree or not self.diverging()

    @property
    def outputs_agree(self) -> bool:
        """Whether the run's outputs in the first step were compared and are equal."""
        told = self.step_quantity("outputs", 0)
        missing = self.outcome.facts().get("not_compared", {})
        return (
            bool(told)
            and not missing
            and all(q.compared and not q.mismatched for q in told)
        )

    def ratios(self) -> list[tuple[float, float]]:
        """Returns (ratio, residual) of d loss / d outputs of every rank, all cuts.

        The ratio is the least-squares one over all cuts of the rank; the residual
        includes the deviation of single cuts from it. If the model's rows are not
        samples, and no output can be cut, it is that of the parameters' gradients.
        """
        found = (
            None if self.has_cuts else _ratios_of_other_rows(self.probed, self.close)
        )
        if found is not None:
            return found
        return [combined(r.cuts) for r in self.probed_ranks]

    def micro_ratios(self) -> dict[tuple[int, int], tuple[float, float]]:
        """Returns (ratio, residual) by (rank, micro-batch) for steps with several."""
        found: dict[tuple[int, int], tuple[float, float]] = {}
        for rank in self.probed_ranks:
            for number in sorted({c.micro for c in rank.cuts}):
                cuts = [c for c in rank.cuts if c.micro == number]
                found[rank.rank, number] = combined(cuts)
        return found

    @property
    def has_cuts(self) -> bool:
        """Whether the loss could be judged alone: some output carries its gradient."""
        return bool(self.probed) and any(
            c.norm > 0
            for r in self.probed.ranks  # type: ignore[union-attr]
            for c in r.cuts
        )

    @property
    def loss_is_global(self) -> bool:
        """Whether a fix gives every rank the global loss, which probes do not see."""
        return found(self.outcome.spec.fixes, GlobalLoss) is not None

    @property
    def loss_is_sound(self) -> bool:
        """Whether every rank's output gradient is W times the reference's rows."""
        world = self.world_size
        return self.loss_is_global or (
            self.has_cuts
            and all(
                abs(ratio - world) <= self.close * world and residual <= self.close
                for ratio, residual in self.ratios()
            )
        )

    @property
    def direct_is_sound(self) -> bool:
        """Whether parameters used in the loss itself get the right mean gradient.

        Sound: the mean over ranks is the reference's; for a term that every rank has in
        full, each rank's gradient is the reference's.
        """
        return all(
            residual <= self.close and abs(ratio - 1) <= self.close
            for ratio, residual in self.direct()
        )

    def direct(self) -> list[tuple[float, float]]:
        """Returns (ratio, residual) of the direct parameter gradients per rank."""
        return (
            [combined(r.direct) for r in self.probed.ranks if r.direct]
            if self.probed
            else []
        )

    @property
    def uniform_ratio(self) -> float | None:
        """The single factor of all ranks' output gradients, None if none fits."""
        if (ratios := self.rank_ratios) is None:
            return None
        first = ratios[0]
        same = all(abs(ratio - first) <= self.close * abs(first) for ratio in ratios)
        return first if same and math.isfinite(first) else None

    @property
    def mixes_a_sum(self) -> bool:
        """Whether one part of the loss is a sum over samples and the other a mean."""
        if self.probed is None or self.loss_is_sound or self.uniform_ratio is not None:
            return False
        cuts = [c for r in self.probed.ranks for c in r.cuts]
        return all(c.mixed <= self.close for c in cuts if c.norm or c.residual)

    @property
    def rank_ratios(self) -> list[float] | None:
        """One factor per rank, None if some rank has none."""
        ratios = self.ratios()
        if not ratios or any(residual > self.close for _, residual in ratios):
            return None
        return [ratio for ratio, _ in ratios]

    @property
    def couples(self) -> bool | None:
        """Whether the loss at one sample depends on others, where it is wrong."""
        if any(c.is_chosen for c in self._wrong_cuts()):
            return True  # others decide which samples count, or in which direction
        factors = self.rank_ratios
        shares = are_shares(factors, self.close)
        if not self.is_part and factors is not None and shares:
            # A divisor is the same for all samples, whatever it is computed from.
            whole = self.probed.reference.loss if self.probed else None
            makes = _make_the_whole(factors, self.rank_losses(), whole, self.close)
            return self.couplings.is_smooth() and not makes
        strongest = self.couplings.strongest()
        if strongest is None:
            return None
        counts = self.couplings.count(self.close) and shares
        return strongest > self.least_coupling and not counts

    @property
    def couplings(self) -> Couplings:
        """How samples are coupled at the outputs where the loss is wrong.

        A sound term that couples samples says nothing about errors elsewhere.
        """
        keys = {c.key for c in self._wrong_cuts()}
        found = self.probed.reference.couplings if self.probed else Couplings()
        return found.only(keys)

    def _wrong_cuts(self) -> list[Cut]:
        return [c for rank in self.probed_ranks for c in rank.cuts if self._is_wrong(c)]

    def _is_wrong(self, cut: Cut) -> bool:
        world = self.world_size
        off = abs(cut.ratio - world) > self.close * world and bool(cut.norm)
        return off or not cut.residual <= self.close

    @property
    def fault_text(self) -> str:
        """The message of the first rank that raised, "" if none did."""
        return next((f.summary for f in self.run.faults if f.kind == "raised"), "")

    def rank_losses(self) -> list[float | None]:
        """Returns the ranks' losses on the reference's own outputs."""
        return [r.loss for r in self.probed_ranks]

    @property
    def losses_replicate(self) -> bool:
        """Whether an exchange has given every rank the reference's loss."""
        # Else by coincidence: before training the loss of every shard is log(classes).
        if self.probed is None or not any(r.collectives for r in self.probed.ranks):
            return False
        reference, values = self.probed.reference.loss, self.rank_losses()
        if reference is None or not values:
            return False
        allowed = self.close * max(abs(reference), 1e-12)
        return all(v is not None and abs(v - reference) <= allowed for v in values)

    @property
    def losses_average(self) -> bool:
        """Whether the mean of the ranks' losses is the reference's."""
        return self.mean_loss_power == 0

    @property
    def mean_loss_power(self) -> int | None:
        """Power of W by which the mean of the per-rank losses is wrong, or None."""
        reference = self.probed.reference.loss if self.probed else None
        values = [v for v in self.rank_losses() if v is not None]
        if reference is None or not values or len(values) < self.world_size:
            return None
        mean = sum(values) / len(values)
        allowed = self.close * max(abs(reference), 1e-12)
        scaled = {k: mean / self.world_size**k for k in (0, 1, -1)}
        fits = (k for k, value in scaled.items() if abs(value - reference) <= allowed)
        return next(fits, None)

    @property
    def loss_collectives(self) -> int:
        """Number of collectives that the target calls in a step, without those of DDP.

        0 if their results reach no gradient of any rank.
        """
        ranks = self.probed_ranks
        if not any(r.asks_others for r in ranks):
            return 0
        return max((r.collectives for r in ranks), default=0)

    @property
    def loss_asks_others(self) -> bool:
        """Whether the loss itself depends on values of other ranks.

        Gradients may, too: on a norm for clipping, or on a count that divides them.
        """
        ranks = self.probed_ranks
        return any(r.collectives and "loss" in r.asks_others for r in ranks)

    @property
    def ranks(self) -> list[RankFacts]:
        """The facts of every rank of the divergent run; run/facts.py lists them."""
        return self.outcome.facts_of_ranks()

    def step_quantity(self, name: str, step: int) -> list[Quantity]:
        """Returns every rank's numbers of one quantity at one step."""
        return [
            s.quantities[name]
            for r in range(len(self.outcome.ranks))
            for s in self.outcome.steps(r)
            if s.step == step and name in s.quantities
        ]

    def mismatched(self, name: str, step: int) -> list[str]:
        """Returns the tensors of a quantity that differ at a step on any rank.

        Tensors are matched by name, whichever of the step's updates it is.
        """
        found = (
            t.name.partition("@")[0]
            for quantity in self.step_quantity(name, step)
            for t in quantity.tensors
            if t.excess * self.outcome.spec.rtol > self.rtol
        )
        return list(dict.fromkeys(found))

    @property
    def untrained(self) -> set[str]:
        """Parameters that require no gradient, or get none in the reference."""
        return {*self.facts["untrained"], *self.facts["unused"]}

    def first_broken(self, name: str) -> int | None:
        """Returns the first step at which a quantity differs."""
        steps = range(self.outcome.spec.steps)
        return next((step for step in steps if self.mismatched(name, step)), None)


def returns_other_rows(probed: StepEvidence | None) -> bool:
    """Returns whether the model's output rows are no samples: tokens, nodes, edges.

    No output of a shard is known to be a part of the global output, so none can be cut,
    and the loss cannot be judged by its gradient there. The gradients of parameters
    show the same if the single-process gradient is a weighted sum of the ranks'.
    """
    calls = probed.ranks[0].modules if probed else ()
    roots = [m for m in calls if not m.name]
    return bool(roots) and all(m.rel_diff is None and not m.numbers for m in roots)


def _ratios_of_other_rows(
    probed: StepEvidence | None, close: float
) -> list[tuple[float, float]] | None:
    """Returns (ratio, residual) of every rank's gradient, None if they do not show it.

    A rank with the weight 1 / W in the single-process gradient, as in DDP, has the
    ratio W.

    Args:
        probed: what probes found.
        close: the largest residual of a sum that is the single-process gradient.
    """
    span = probed.ranks[0].span if probed else None
    if span is None or not returns_other_rows(probed):
        return None
    if span.residual > close or min(span.weights) <= 0:
        return None
    return [(1 / weight, span.residual) for weight in span.weights]


def are_shares(factors: Sequence[float] | None, close: float) -> bool:
    """Returns whether the ranks' factors can be N / n_r: their inverses add up to 1.

    True if they are None: nothing contradicts it.
    """
    if factors is None:
        return True
    inverses = sum(1 / factor for factor in factors if factor)
    return abs(inverses - 1) <= close


def _make_the_whole(
    factors: Sequence[float] | None,
    losses: Sequence[float | None],
    whole: float | None,
    close: float,
) -> bool:
    """Returns whether the per-rank losses, weighted by shares, add up to the whole.

    That is so for quotients S_r / n_r, whatever n_r is, and for sound terms. The
    logarithm of a mean has the same factors and gives another number. True if something
    is unknown.
    """
    if factors is None or whole is None or not all(factors):
        return True
    known = [v for v in losses if v is not None]
    if len(known) < len(factors):
        return True
    made = sum(v / factor for v, factor in zip(known, factors, strict=True))
    return abs(made - whole) <= close * max(1e-12, abs(whole), *map(abs, known))
