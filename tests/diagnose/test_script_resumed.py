"""What a resumed script has not restored, from the events of its runs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ddpcheck.diagnose.script_data import resumed
from ddpcheck.run.script.events import Drawn, Elements, Moment, Passed

START = 2
NOTHING: dict[str, tuple[float, ...]] = {}


def _moment(step: int, update: int, **changes: Any) -> Moment:
    """Returns the moment of a process before its update `step`, by its true number."""
    made = Moment(
        step=step,
        ended=False,
        weights={"weight": (1.0, 2.0 + update), "bias": (0.5 * update,)},
        buffers={"mean": (0.1 * update, 3.0), "count": (float(update + 1),)},
        gradients={"weight": (0.5, update + 1.0), "bias": (0.25,)},
        state={"momentum_buffer of weight": (update + 0.5, 1.0)},
        groups=(({"lr": 0.1 / (1 + update)},),),
        scalers={"scale of scaler 1": (2.0**update,)},
        averages={"ema.weight": (1.0, 2.0 + 0.4 * update)},
        random=f"state {update}",
    )
    return dataclasses.replace(made, **changes)


def _drawn(step: int, update: int, *, loader: int = 0) -> Drawn:
    samples = (2 * update, 2 * update + 1)
    return Drawn(loader=loader, turn=0, number=step, samples=samples, step=step)


def _whole(rank: int = 0) -> list[Any]:
    del rank
    events: list[Any] = []
    for update in range(5):
        events += [_drawn(update, update), _moment(update, update)]
    return events


def _again(**changes: Any) -> list[Any]:
    """Returns the events of a rank that resumes; changes are of its first moment."""
    events: list[Any] = []
    for step in range(3):
        update = step + START
        own = changes if not step else {}
        events += [_drawn(step, update), _moment(step, update, **own)]
    return events


def _compared(*ranks: list[Any]) -> resumed.Compared:
    return resumed.compared([_whole() for _ in ranks], ranks, START)


def _facts(*ranks: list[Any]) -> tuple[str, ...]:
    (found,) = _compared(*ranks).findings
    return found.facts


def test_run_that_goes_on_alike_has_no_finding() -> None:
    found = _compared(_again(), _again())
    assert found.findings == []
    assert (found.start, found.updates, found.tensors, found.lost) == (2, 3, 4, 0)


def test_start_is_the_update_whose_weights_the_resumed_run_has() -> None:
    assert resumed.start_of(_whole(), _again(), 4) == START
    assert resumed.start_of(_whole(), _whole(), 2) == 0


def test_state_that_is_missing_is_named_with_the_ranks() -> None:
    assert _facts(_again(state=NOTHING), _again(state=NOTHING)) == (
        "all ranks: 1 of 1 numbers of the optimizer are missing: "
        "momentum_buffer of weight",
    )
    (found,) = _compared(_again(), _again(state=NOTHING)).findings
    assert found.slug == "state/lost-at-resume"
    assert found.facts[0].startswith("rank 1: 1 of 1 numbers of the optimizer are")


def test_missing_state_of_zeros_is_the_same() -> None:
    whole = [
        dataclasses.replace(e, state={"momentum_buffer of weight": (0.0, 0.0)})
        if isinstance(e, Moment)
        else e
        for e in _whole()
    ]
    again = [
        dataclasses.replace(e, state=NOTHING) if isinstance(e, Moment) else e
        for e in _again()
    ]
    assert resumed.compared([whole], [again], START).findings == []


def test_weights_learning_rate_and_buffers_are_compared() -> None:
    facts = _facts(
        _again(
            weights={"weight": (1.0, 4.5), "bias": (1.0,)},
            groups=(({"lr": 0.5},),),
            buffers={"mean": (0.2, 3.0), "count": (1.0,)},
        )
    )
    assert facts == (
        "all ranks: 1 of 2 weights differ, relative difference up to 0.111: weight",
        "all ranks: 1 of 2 buffers differ, relative difference up to 0.667: count",
        "all ranks: lr of update 3 is 0.5, in the run that went on 0.0333",
    )


def test_scale_and_averages_are_compared() -> None:
    changes = {
        "scalers": {"scale of scaler 1": (1.0,)},
        "averages": {"ema.weight": (1.0, 2.0), "other.weight": (1.0, 7.0)},
    }
    assert _facts(_again(**changes)) == (
        "all ranks: 1 of 1 numbers of gradient scalers differ, relative difference up "
        "to 0.75: scale of scaler 1",
        "all ranks: 1 of 1 averages of weights differ, relative difference up to "
        "0.286: ema.weight",
    )


def test_copies_of_the_weights_as_they_once_were_are_no_averages() -> None:
    # Of the first moment, not of the resumed run.
    best: Elements = {"best.weight": (1.0, 3.0)}
    whole = [
        dataclasses.replace(e, averages=best) if isinstance(e, Moment) else e
        for e in _whole()
    ]
    again = _again(averages={"best.weight": (1.0, 4.0)})
    assert resumed.compared([whole], [again], START).findings == []


def test_learning_rate_that_differs_later_is_found() -> None:
    again = _again()
    again[-1] = dataclasses.replace(again[-1], groups=(({"lr": 0.5},),))
    assert _facts(again) == (
        "all ranks: lr of update 5 is 0.5, in the run that went on 0.02",
    )


def test_samples_that_are_drawn_again_are_named_by_their_update() -> None:
    again = [_drawn(e.step, e.step) if isinstance(e, Drawn) else e for e in _again()]
    (found,) = _compared(again, _again()).findings
    assert (found.slug, found.link) == ("data/resume-order", "data")
    assert found.facts == (
        "rank 0: update 3 draws other samples: those of update 1 of the run that went "
        "on",
    )


def test_batches_that_are_skipped_before_the_first_update_do_not_count() -> None:
    skipped = [_drawn(0, update) for update in range(START)]
    assert _compared(skipped + _again()).findings == []


def test_batches_that_are_drawn_ahead_are_of_the_next_update() -> None:
    whole: list[Any] = [_drawn(0, 0)]
    for update in range(5):
        whole += [_drawn(update, update + 1), _moment(update, update)]
    skipped = [_drawn(0, update) for update in range(START)]
    again: list[Any] = [*skipped, _drawn(0, START)]
    for step in range(3):
        update = step + START
        again += [_drawn(step, update + 1), _moment(step, update)]
    assert resumed.compared([whole], [again], START).findings == []
    anew = [e for e in again if e not in skipped]
    moved = [
        dataclasses.replace(e, samples=tuple(s - 4 for s in e.samples))
        if isinstance(e, Drawn)
        else e
        for e in anew
    ]
    (found,) = resumed.compared([whole], [moved], START).findings
    assert found.slug == "data/resume-order"


def _ahead(start: int, skipped: int = 0) -> list[Any]:
    """Returns the events of a rank that draws a batch ahead, in passes of 4 batches.

    It begins at an update, and has drawn batches of its pass before.
    """
    events: list[Any] = [_drawn(0, start - number) for number in range(skipped, 0, -1)]
    waits = False
    for step in range(7 - start):
        update = step + start
        if not waits:
            events.append(_drawn(step, update))
        waits = update % 4 < 3
        if waits:
            events.append(_drawn(step, update + 1))
        else:
            events.append(Passed(loader=0, turn=update // 4, batches=4))
        events.append(_moment(step, update))
    return events


@pytest.mark.parametrize("start", [1, 2, 3, 4, 5])
def test_loader_that_draws_ahead_is_followed_over_the_end_of_a_pass(start: int) -> None:
    whole, skipped = _ahead(0), start % 4
    found = resumed.compared([whole], [_ahead(start)], start)
    assert (found.findings, found.not_compared) == ([], ())
    found = resumed.compared([whole], [_ahead(start, skipped)], start)
    assert (found.findings, found.not_compared) == ([], ())
    anew = [
        dataclasses.replace(e, samples=(e.samples[0] + 1, *e.samples[1:]))
        if isinstance(e, Drawn)
        else e
        for e in _ahead(start)
    ]
    (one,) = resumed.compared([whole], [anew], start).findings
    assert one.slug == "data/resume-order"


def test_loader_that_only_evaluates_does_not_count() -> None:
    evaluation = _drawn(1, 40, loader=1)
    again = _again()
    assert _compared([*again[:2], evaluation, *again[2:]]).findings == []


def test_run_that_ends_earlier_is_a_finding() -> None:
    again = _again()
    again[-1] = dataclasses.replace(again[-1], ended=True)
    assert _facts(again) == (
        "all ranks: update 5 is missing: the resumed run has ended before it",
    )


def test_other_gradients_and_generators_are_lost_random_numbers() -> None:
    again = _again(gradients={"weight": (9.0, 3.0), "bias": (0.25,)}, random="other")
    (found,) = _compared(again).findings
    assert found.slug == "rng/lost-at-resume"
    assert found.facts == (
        "rank 0: gradients of update 3 differ: weight",
        "rank 0: the generators are in another state",
    )


def test_other_generators_with_equal_gradients_are_no_finding() -> None:
    assert _compared(_again(random="other")).findings == []


def test_other_weights_later_are_unknown_whatever_the_generators_do() -> None:
    again = _again()
    other = {"weight": (9.0, 3.0), "bias": (0.25,)}
    again[3] = dataclasses.replace(
        again[3], weights=other, gradients=other, random="other"
    )
    (found,) = _compared(again).findings
    assert found.slug == "unknown"
    assert found.facts == ("rank 0: weights of update 4 differ: weight, bias",)
    assert found.link == "update"
    assert found.fix is not None
    assert found.fix.text.endswith("the gradient scaler")


def test_other_gradients_with_equal_generators_are_unknown() -> None:
    again = _again(gradients={"weight": (9.0, 3.0), "bias": (0.25,)})
    (found,) = _compared(again).findings
    assert (found.slug, found.link) == ("unknown", "forward")
    assert found.fix is not None
    assert found.fix.text == (
        "save and load what else gradients depend on: an average of the weights, a "
        "teacher, a queue, a coefficient"
    )


@pytest.mark.parametrize("update", [None, 1])
def test_runs_that_are_not_repeatable_are_known_by_their_weights(
    update: int | None,
) -> None:
    other = [
        dataclasses.replace(e, weights={"weight": (7.0, 7.0)})
        if isinstance(e, Moment) and e.step == update
        else e
        for e in _whole()
    ]
    assert resumed.repeats([_whole()], [other]) == update
