"""What is reported where no cause is known: where it starts, and what it is not.

The first link that breaks, the first quantity, step and tensors that differ, and the
links and fixes that evidence or a run has ruled out. Each is a fact with its number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ddpcheck.diagnose.facts import rows, unlike
from ddpcheck.diagnose.facts.case import Case
from ddpcheck.diagnose.facts.events import common_factor, ranks_disagree
from ddpcheck.diagnose.facts.text import names, number, worst_of
from ddpcheck.report.data import Finding, RuledOut, Start
from ddpcheck.run.session import assemble

SLUG = "unknown"
_MOST = 8  # names of parameters, in the report's data
_QUANTITIES = ("gradients", "weights", "buffers")


def finding(case: Case, runs: list[int], tried: Mapping[str, float]) -> Finding:
    """Returns the finding of a run that no rule explains.

    Args:
        case: that run, with the fixes of what rules explain.
        runs: those of the report that it stands for.
        tried: the excess that fixes of rules leave, by slug.
    """
    moment = _moment(case)
    link, where = _where(case)
    if moment is not None:
        link, where = "data", f", in step {moment.step + 1}"
    start = _start(case, link, moment)
    return Finding(
        slug=SLUG,
        link=link,
        runs=tuple(runs),
        summary=f"the cause is unknown; it starts in the {_in_words(case, link)} "
        f"link{where}",
        facts=tuple(_facts(case, moment, start)),
        start=start,
        ruled_out=tuple(_ruled_out(case, link, tried)),
    )


def _in_words(case: Case, link: str) -> str:
    """Returns the link; with the one before it where they cannot be told apart.

    Where no output carries the loss's gradient alone, a wrong loss and a wrong backward
    look the same.
    """
    is_either = link == "backward" and not _loss_is_sound(case)
    return "loss or backward" if is_either else link


def link_of(case: Case) -> str:
    """Returns the link that breaks first."""
    return "data" if _moment(case) else _where(case)[0]


def place_keys(case: Case) -> tuple[str, ...]:
    """Returns what to look up for the place, where evidence names one; else ()."""
    link = link_of(case)
    if link == "reduce" and unlike.groups(case):
        return ("wrap", "train_step")
    states = unlike.first_states(case) if link == "update" else []
    if any(found.state.update == 0 for found in states):
        return ("optimizer", "train_step")
    return ()


def _moment(case: Case) -> rows.Moment | None:
    """Returns the step whose samples are others, None where the ranks make them so."""
    moment = rows.first_wrong(case)
    return None if moment is None or rows.foreign(case, moment) else moment


def _facts(case: Case, moment: rows.Moment | None, start: Start | None) -> list[str]:
    facts = [*_samples(moment), *_first(case), *unlike.held_otherwise(case)]
    more = [found.text for found in unlike.first_states(case)]
    more += unlike.reduced_over(case)
    facts += [text for text in more if start is None or text != start.text]
    facts += worst_of(case.run)
    factor = common_factor(case)
    if factor is not None:
        facts.append(
            f"all gradients that differ in the first step are {number(factor)} "
            "times the single-process ones"
        )
    if lost := case.outcome.facts().get("set_on_wrapper"):
        facts.append(
            "set on the wrapper and not on the model inside, which keeps its own "
            f"value: {names(lost)}"
        )
    if case.probe_failed:
        facts.append(f"no link could be judged separately: {case.probe_failed}")
    if case.ratios():
        facts.append(
            "the loss's gradient at the single-process outputs, divided by the "
            "single-process one, per rank: "
            + ", ".join(number(r) for r, _ in case.ratios()[:8])
            + f", expected {case.world_size}"
        )
    return facts


def _where(case: Case) -> tuple[str, str]:
    """Returns the first link that breaks, and where in it."""
    diverging = case.diverging()
    if diverging and not case.outputs_agree:
        return "forward", f", at {diverging[0].name or 'the model itself'}"
    if case.has_cuts and not case.loss_is_sound:
        return "loss", ""
    if case.reduce_is_broken:
        return "reduce", ""
    gradients, weights = case.first_broken("gradients"), case.first_broken("weights")
    if weights is not None and (gradients is None or weights < gradients):
        return "update", f", in step {weights + 1}"
    if gradients is None:
        return "update", ""
    return ("update" if gradients else "backward"), f", in step {gradients + 1}"


def _samples(moment: rows.Moment | None) -> list[str]:
    """Returns a sentence on the moment at which the data link breaks."""
    if moment is None:
        return []
    return [
        f"samples in step {moment.step + 1}: {len(moment.one)} in the "
        f"single-process run, {', '.join(str(len(r)) for r in moment.ranks[:8])} on "
        f"the ranks; on no rank: {sum(moment.missing.values())}; not in the "
        f"single-process run: {sum(moment.foreign.values())}; repeated: "
        f"{sum(moment.repeated.values())}"
    ]


def _first(case: Case) -> list[str]:
    """Returns a sentence on what differs first, none where that is an output."""
    told = _first_different(case)
    if told is None:
        return []
    step, quantity, found = told
    do = "differ" if ranks_disagree(case, quantity, step) else "agree"
    where = f"{quantity} in step {step + 1}, of {names(found)}"
    is_rest = bool(case.outcome.spec.fixes)  # with a fix in force
    still = "still " if is_rest else ""
    return [f"first to {still}differ: {where}; the ranks {do}"]


def _first_different(case: Case) -> tuple[int, str, list[str]] | None:
    """Returns the first step and quantity with tensors that differ, and their names."""
    for step in range(case.outcome.spec.steps):
        for quantity in _QUANTITIES:
            found = case.mismatched(quantity, step)
            if found:
                return step, quantity, found
    return None


def _start(case: Case, link: str, moment: rows.Moment | None) -> Start | None:
    """Returns the first difference that was seen, None where none was."""
    if moment is not None:
        text = f"the samples of step {moment.step + 1}"
        return Start(text=text, quantity="samples", step=moment.step)
    unequal = [n for f in case.ranks for n in f.get("start_differs", [])]
    if unequal:
        held = tuple(dict.fromkeys(unequal))
        return Start(
            text=f"the weights before step 1, of {names(held)}",
            quantity="initial weights",
            step=0,
            parameters=held[:_MOST],
        )
    diverging = case.diverging()
    if link == "forward" and diverging:
        name = diverging[0].name
        return Start(
            text=f"step 1, the output of {name or 'the model itself'}",
            quantity="outputs",
            step=0,
            module=name,
        )
    states = unlike.first_states(case) if link == "update" else []
    if states:
        state = states[0].state
        return Start(
            text=states[0].text,
            quantity="optimizer state",
            step=state.step,
            parameters=state.names,
            optimizer=state.optimizer,
            key=state.key,
        )
    return _first_tensors(case, link)


def _first_tensors(case: Case, link: str) -> Start | None:
    told = _first_different(case)
    if told is None:
        return None
    step, quantity, found = told
    parts = unlike.groups(case) if link == "reduce" else {}
    plain = f"step {step + 1}, {quantity} of {names(found)}"
    return Start(
        text=unlike.reduced_over(case)[0] if parts else plain,
        quantity=quantity,
        step=step,
        parameters=tuple(found[:_MOST]),
        group=next(iter(parts.values()), ()),
    )


def _ruled_out(case: Case, link: str, tried: Mapping[str, float]) -> Iterator[RuledOut]:
    """Yields the links before and beside the broken one, then the fixes tried."""
    sound = {
        "data": _data_is_sound(case),
        "forward": _forward_is_sound(case),
        "loss": _loss_is_sound(case),
        "reduce": _reduce_is_sound(case),
        "gradients": _gradients_are_sound(case),
        "all but the reduction": _rest_is_sound(case),
    }
    for what, why in sound.items():
        if why and what != link:
            yield RuledOut(what=what, why=why)
    for slug, excess in tried.items():
        if excess > 1 and math.isfinite(excess):  # a run that fails rules nothing out
            why = f"its fix leaves excess {number(excess)}"
            yield RuledOut(what=slug, why=why, excess=excess)


def _data_is_sound(case: Case) -> str:
    if case.watched is None:
        asks = case.facts["has_train_step"] or case.facts["asks_distributed"]
        return "" if asks else "each rank trains on its shard of the batch"
    known = rows.moments(case)
    if not known or any(not moment.is_parted for moment in known):
        return ""
    steps = 1 + max(moment.step for moment in known)
    return f"in {steps} steps the ranks train on each of the batch's samples once"


def _forward_is_sound(case: Case) -> str:
    judged = [m.rel_diff for m in case.modules() if m.rel_diff is not None]
    if not judged or case.diverging():
        return ""
    return (
        "given the single-process inputs, every module returns the single-process "
        f"rows ({len(judged)} compared, relative difference at most "
        f"{number(max(judged))})"
    )


def _loss_is_sound(case: Case) -> str:
    if not case.has_cuts or not case.loss_is_sound or not case.direct_is_sound:
        return ""
    return (
        f"its gradient at the single-process outputs is {case.world_size} times the "
        "single-process one on every rank, as DDP needs"
    )


def _reduce_is_sound(case: Case) -> str:
    if case.reduce_is_broken or not case.rest_is_broken or case.by_hand.faults:
        return ""
    left, by_wrapper = (
        number(assemble.worst_excess(run)) for run in (case.by_hand, case.run)
    )
    return (
        "gradients averaged by hand instead of by the wrapper leave excess "
        f"{left}, and {by_wrapper} with it"
    )


def _gradients_are_sound(case: Case) -> str:
    """Returns why gradients are not the cause: they were right when weights broke."""
    gradients, weights = case.first_broken("gradients"), case.first_broken("weights")
    if weights is None or (gradients is not None and gradients <= weights):
        return ""
    told = [q.worst for q in case.step_quantity("gradients", weights) if q.worst]
    if not told:
        return ""
    scale = case.outcome.spec.rtol / case.rtol
    excess = max(row.excess for row in told) * scale
    return (
        f"they are equal in step {weights + 1}, in which weights differ first "
        f"(excess {number(excess)})"
    )


def _rest_is_sound(case: Case) -> str:
    if case.by_hand.verdict != "equivalent":
        return ""
    excess = assemble.worst_excess(case.by_hand)
    return (
        "with gradients averaged by hand instead of by the wrapper the runs are equal "
        f"(excess {number(excess)})"
    )
