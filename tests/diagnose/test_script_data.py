"""The data verdict of a script: what ranks drew, against the single process."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from ddpcheck.diagnose.script_data import judge
from ddpcheck.report.data import NotCompared
from ddpcheck.report.pages import pages
from ddpcheck.run.script.events import Drawn, Loader, Passed, Updated

SIZE = 24  # of the data

PLAIN = Loader(
    number=0,
    turn=0,
    batches=None,
    samples=SIZE,
    batch_size=4,
    drop_last=False,
    sampler="DistributedSampler",
    shuffles=True,
    replicas=2,
    is_iterable=False,
)
RANDOM = replace(PLAIN, sampler="RandomSampler", replicas=None)


@dataclass
class Process:
    """Writes the events of a process, as its script would cause them."""

    loader: Loader = PLAIN
    batch: int = 4
    events: list[Any] = field(default_factory=list)
    step: int = 0
    turns: dict[int, int] = field(default_factory=dict)
    rows: tuple[int, ...] = ()  # that the model is given in each update

    def begin(self, loader: Loader | None = None) -> Loader:
        """Begins a pass."""
        one = loader or self.loader
        turn = self.turns.get(one.number, 0)
        self.turns[one.number] = turn + 1
        one = replace(one, turn=turn)
        self.events.append(one)
        return one

    def draw(
        self,
        one: Loader,
        samples: Sequence[Any],
        number: int = 0,
        rows: tuple[str, ...] = (),
    ) -> None:
        """Draws one batch."""
        self.events.append(
            Drawn(
                loader=one.number,
                turn=one.turn,
                number=number,
                samples=tuple(samples),
                step=self.step,
                rows=rows,
            )
        )

    def update(self) -> None:
        """Updates the weights."""
        groups = (({"lr": 0.1},),)
        self.events.append(
            Updated(step=self.step, updates=1, groups=groups, rows=self.rows)
        )
        self.step += 1

    def end(self, one: Loader, batches: int) -> None:
        """Comes to the end of a pass."""
        self.events.append(Passed(loader=one.number, turn=one.turn, batches=batches))

    def train(
        self,
        order: Sequence[Any],
        *,
        loader: Loader | None = None,
        whole: bool = True,
        rows: str = "",
        hangs: bool = False,
    ) -> Process:
        """Trains one pass, with an update after each batch.

        `rows`: makes the digests of samples, with what follows it. `hangs`: in the
        update of its last batch.
        """
        one = self.begin(loader)
        starts = range(0, len(order), self.batch)
        for number, start in enumerate(starts):
            part = order[start : start + self.batch]
            digests = tuple(f"{rows}{sample}" for sample in part) if rows else ()
            self.draw(one, part, number, digests)
            if not (hangs and number == len(starts) - 1):
                self.update()
        if whole:
            self.end(one, len(starts))
        return self

    def evaluate(self, loader: Loader, batches: int = 3) -> Process:
        """Draws a whole pass without an update."""
        one = self.begin(loader)
        for number in range(batches):
            self.draw(one, range(4 * number, 4 * number + 4), number)
        self.end(one, batches)
        return self


def order(seed: int, size: int = SIZE) -> list[int]:
    """Returns a permutation."""
    found = list(range(size))
    random.Random(seed).shuffle(found)  # noqa: S311 (not for secrets)
    return found


def single(*seeds: int, loader: Loader = RANDOM) -> list[Any]:
    """Returns the events of a process that shuffles with these seeds."""
    process = Process(loader, batch=8)
    for seed in seeds:
        process.train(order(seed))
    return process.events


def ranks(*passes: tuple[Sequence[Any], Sequence[Any]], **kw: Any) -> list[list[Any]]:
    """Returns the events of two ranks, whose passes have these samples."""
    every = [Process(**kw) for _ in range(2)]
    for each in passes:
        for process, drawn in zip(every, each, strict=True):
            process.train(drawn)
    return [process.events for process in every]


def shards(seed: int, other: int | None = None) -> tuple[list[int], list[int]]:
    """Returns the parts of two ranks, the second of another permutation if wanted."""
    second = seed if other is None else other
    return order(seed)[::2], order(second)[1::2]


def slugs(
    of_ranks: Sequence[Sequence[Any]], one: Sequence[Any], **kw: bool
) -> list[str]:
    """Returns the slugs of the findings."""
    return [found.slug for found in judge.findings(of_ranks, one, **kw)]


def told(of_ranks: Sequence[Sequence[Any]], one: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the slug, the summary and the facts of the only finding."""
    (found,) = judge.findings(of_ranks, one)
    assert (found.link, found.runs, found.where) == ("data", (), None)
    assert found.fix is not None
    assert found.fix.verified is None
    return found.slug, found.summary, found.facts


# Nothing is wrong.


def test_shards_of_one_permutation_in_every_pass_are_silent() -> None:
    assert slugs(ranks(shards(0), shards(1)), single(5, 6)) == []


def test_evaluation_on_rank_0_only_is_silent() -> None:
    held_out = replace(PLAIN, samples=12, sampler="SequentialSampler", shuffles=False)
    every = [Process(), Process(replace(PLAIN, number=0))]
    first = replace(PLAIN, number=1)  # rank 0 drew from the other one before
    every[0].evaluate(held_out)
    for seed in (0, 1):
        every[0].train(shards(seed)[0], loader=first).evaluate(held_out)
        every[1].train(shards(seed)[1])
    assert slugs([p.events for p in every], single(5, 6)) == []


def test_evaluation_on_all_ranks_alike_is_silent() -> None:
    held_out = replace(PLAIN, number=1, samples=12)
    every = [Process(), Process()]
    for seed in (0, 1):
        for process, part in zip(every, shards(seed), strict=True):
            process.train(part).evaluate(held_out)
    assert slugs([p.events for p in every], single(5, 6)) == []


def test_evaluation_between_a_fetched_batch_and_its_update_is_silent() -> None:
    held_out = replace(PLAIN, number=1, samples=12)
    every = [Process(), Process()]
    for seed in (0, 1):
        for process, part in zip(every, shards(seed), strict=True):
            one = process.begin()
            process.draw(one, part[:4], 0)
            process.draw(one, part[4:8], 1)
            process.update()
            process.draw(one, part[8:], 2)
            process.update()
            process.evaluate(held_out).update()
            process.end(one, 3)
    assert slugs([p.events for p in every], single(5, 6)) == []


def test_loader_that_one_rank_draws_for_all_is_silent() -> None:
    drawing = Process(batch=8).train(order(0)).train(order(1))
    other = Process()
    for _ in range(6):
        other.update()
    assert slugs([drawing.events, other.events], single(5, 6)) == []


def test_nothing_recorded_is_silent() -> None:
    assert slugs([[], []], []) == []


# data/sampler-epoch


def test_same_order_in_every_pass_is_the_epoch_that_is_not_set() -> None:
    found = told(ranks(shards(0), shards(0), shards(0)), single(5, 6, 7))
    assert found == (
        "data/sampler-epoch",
        "the ranks' samples come in the same order in every epoch: the sampler's "
        "epoch is not set",
        (
            "passes on each rank: 3, 3; all have the same order, of 12 samples on "
            "rank 0",
            "the single process draws another order in every pass",
        ),
    )


def test_same_order_that_the_single_process_repeats_is_found() -> None:
    found = told(ranks(shards(0), shards(0)), single(5, 5))
    assert found[2][-1] == "the single process repeats its order, too"


def test_same_order_of_a_sampler_that_does_not_shuffle_is_silent() -> None:
    fixed = replace(PLAIN, shuffles=False)
    assert slugs(ranks(shards(0), shards(0), loader=fixed), single(5, 5)) == []


def test_data_in_order_where_one_process_shuffles_is_found() -> None:
    fixed = replace(PLAIN, shuffles=False)
    parts = range(0, SIZE, 2), range(1, SIZE, 2)
    found = told(ranks(parts, parts, loader=fixed), single(5, 6))
    assert found[:2] == (
        "data/sampler-epoch",
        "the ranks' samples come in the order of the data in every epoch: only the "
        "single process shuffles",
    )


def test_order_that_changes_at_the_third_pass_is_silent() -> None:
    assert slugs(ranks(shards(0), shards(0), shards(1)), single(5, 6, 7)) == []


def test_order_that_one_rank_changes_is_no_repeated_order() -> None:
    parts = shards(0), shards(0, 1)
    (slug,) = slugs(ranks(*parts), single(5, 6))
    assert slug == "data/shard-overlap"


def test_first_batch_looked_at_before_training_is_no_pass() -> None:
    every = []
    for part in shards(0):
        process = Process()
        process.draw(process.begin(), part[:4])
        every.append(process.train(part).events)
    assert slugs(every, single(5)) == []


def test_same_order_of_few_samples_is_silent() -> None:
    few = replace(PLAIN, samples=8)
    parts = [0, 2, 4, 6], [1, 3, 5, 7]
    one = Process(replace(RANDOM, samples=8)).train(order(1, 8)).train(order(2, 8))
    assert slugs(ranks(parts, parts, loader=few), one.events) == []


def test_same_order_of_a_second_pass_that_is_not_whole_is_found() -> None:
    every = [Process().train(p).train(p[:11], whole=False) for p in shards(0)]
    assert slugs([p.events for p in every], single(5, 6)) == ["data/sampler-epoch"]


@pytest.mark.parametrize(
    ("second", "expected"), [("a", ["data/sampler-epoch"]), ("b", [])]
)
def test_loader_built_for_every_pass_is_judged_by_the_rows(
    second: str, expected: list[str]
) -> None:
    every = [
        Process()
        .train(part, rows="a")
        .train(part, rows=second, loader=replace(PLAIN, number=1))
        for part in shards(0)
    ]
    assert slugs([p.events for p in every], single(5, 6)) == expected


# data/shard-overlap


def test_same_small_batches_on_all_ranks_are_not_sharded() -> None:
    plain = replace(RANDOM, batch_size=4)
    found = told(ranks((order(0), order(0)), loader=plain), single(5))
    assert found == (
        "data/shard-overlap",
        "all ranks train on the same samples: the data are not sharded",
        (
            "in pass 1 the first 24 samples are the same on all 2 ranks, in the same "
            "order",
        ),
    )


def test_same_global_batches_that_the_model_is_given_whole_are_not_sharded() -> None:
    events = ranks((order(0), order(0)), loader=RANDOM, batch=8, rows=(8,))
    assert slugs(events, single(5)) == ["data/shard-overlap"]


def test_same_global_batches_that_ranks_cut_are_silent() -> None:
    events = ranks((order(0), order(0)), loader=RANDOM, batch=8, rows=(4,))
    assert slugs(events, single(5)) == []


def test_same_global_batches_of_an_unknown_use_are_silent() -> None:
    events = ranks((order(0), order(0)), loader=RANDOM, batch=8)
    assert slugs(events, single(5)) == []


def test_all_samples_on_every_rank_in_other_orders_are_not_sharded() -> None:
    found = told(ranks((order(0), order(1)), loader=RANDOM), single(5))
    assert found == (
        "data/shard-overlap",
        "every rank trains on all samples: the data are not sharded",
        (
            "in pass 1 the single process draws 24 samples, the 2 ranks draw 24, 24; "
            "drawn more often than there: 24; on no rank: 0",
        ),
    )


def test_shards_of_different_permutations_overlap_and_leave_out() -> None:
    own = shards(0, 1)
    shared = len(set(own[0]) & set(own[1]))
    assert shared == 7
    found = told(ranks(own), single(5))
    assert found == (
        "data/shard-overlap",
        "shards overlap: ranks train on samples of other ranks",
        (
            "in pass 1 the single process draws 24 samples, the 2 ranks draw 12, 12; "
            "drawn more often than there: 7; on no rank: 7",
        ),
    )


@pytest.mark.parametrize(
    ("loader", "code"),
    [
        (
            PLAIN,
            "generator = torch.Generator().manual_seed(0)\n"
            "data, rest = random_split(data, lengths, generator=generator)\n"
            "sampler = DistributedSampler(data, world_size, rank, seed=0)",
        ),
        (
            RANDOM,
            "sampler = DistributedSampler(data)\n"
            "loader = DataLoader(data, batch_size, sampler=sampler)",
        ),
    ],
)
def test_fix_of_an_overlap_is_not_the_sampler_that_is_there(
    loader: Loader, code: str
) -> None:
    events = ranks(shards(0, 1), loader=loader)
    (found,) = judge.findings(events, single(5))
    assert found.slug == "data/shard-overlap"
    assert found.fix is not None
    assert found.fix.code == code


def test_many_lost_samples_are_told_as_different_permutations() -> None:
    own = order(0, 96)[::2], order(1, 96)[1::2]
    large = replace(PLAIN, samples=96)
    one = Process(replace(RANDOM, samples=96), batch=8).train(order(5, 96))
    found = told(ranks(own, loader=large), one.events)
    assert found[1] == (
        "shards overlap, and samples are left out: the shards are parts of different "
        "permutations"
    )


def test_overlap_that_begins_at_the_second_pass_is_found_there() -> None:
    found = told(ranks(shards(0), shards(0, 1)), single(5, 6))
    assert found[0] == "data/shard-overlap"
    assert found[2][0].startswith("in pass 2 the single process draws 24 samples, ")


def test_overlap_where_the_single_process_is_in_its_first_pass_is_found() -> None:
    one = Process(RANDOM, batch=8).train(order(5)[:16], whole=False)
    found = told(ranks(shards(0, 1)), one.events)
    assert found[2] == (
        "in pass 1 the data have 24 samples, the 2 ranks draw 12, 12; drawn more often "
        "than there: 7; on no rank: 7",
    )


def test_overlap_in_the_middle_of_a_pass_is_found() -> None:
    large = replace(PLAIN, samples=64)
    one = Process(replace(RANDOM, samples=64), batch=8).train(
        order(5, 64)[:40], whole=False
    )
    parts = order(0, 64)[:40:2], order(0, 64)[:40:2][::-1]
    every = [Process(large).train(part, whole=False).events for part in parts]
    assert told(every, one.events) == (
        "data/shard-overlap",
        "shards overlap: ranks train on samples of other ranks",
        (
            "of the first 20, 20 samples of pass 1, per rank, 20 are on more than one "
            "rank; the data have 64",
        ),
    )


def _split_by_itself(rank: int, named: Callable[[int], str]) -> list[Any]:
    """Returns the events of a rank in the middle of its own permutation of the data.

    An index is then another sample on another rank; `named` gives the row of a sample.
    """
    own = order(rank, 64)
    process = Process(replace(PLAIN, samples=64))
    one = process.begin()
    for number in range(6):
        indices = range(number * 8 + rank, number * 8 + 8, 2)
        rows = tuple(named(own[index]) for index in indices)
        process.draw(one, indices, number, rows)
        process.update()
    return process.events


def test_overlap_of_data_that_each_rank_splits_by_itself_is_found() -> None:
    every = [_split_by_itself(rank, str) for rank in range(2)]
    one = _split_by_itself(2, str)
    assert told(every, one) == (
        "data/shard-overlap",
        "shards overlap: ranks train on samples of other ranks",
        (
            "of the first 24, 24 samples of pass 1, per rank, 11 are on more than "
            "one rank; the data have 64",
            "an index is another sample on another rank: each has data of its own",
        ),
    )


def test_rows_that_data_have_several_times_are_no_overlap() -> None:
    every = [_split_by_itself(rank, lambda n: str(n % 16)) for rank in range(2)]
    assert slugs(every, _split_by_itself(2, str)) == []


def test_endless_pass_that_begins_again_is_silent() -> None:
    every = [
        Process(replace(PLAIN, batches=None)).train(
            [*order(0)[r::2], *order(1)[r::2]], whole=False
        )
        for r in range(2)
    ]
    one = Process(RANDOM, batch=8).train([*order(0), *order(1)], whole=False)
    assert slugs([p.events for p in every], one.events) == []


def test_samples_drawn_with_replacement_everywhere_are_silent() -> None:
    loader = replace(RANDOM, sampler="OwnSampler")
    draw = random.Random(0)  # noqa: S311 (not for secrets)
    drawn = [draw.choices(range(SIZE), k=12) for _ in range(2)]
    one = Process(loader, batch=8).train(draw.choices(range(SIZE), k=24))
    assert slugs(ranks((drawn[0], drawn[1]), loader=loader), one.events) == []


def test_weighted_sampler_with_one_seed_on_all_ranks_is_not_sharded() -> None:
    loader = replace(RANDOM, sampler="WeightedRandomSampler")
    drawn = random.Random(0).choices(range(SIZE), k=12)  # noqa: S311
    one = Process(loader, batch=8).train(drawn * 2)
    events = ranks((drawn, drawn), loader=loader)
    assert slugs(events, one.events) == ["data/shard-overlap"]


def test_same_indices_of_other_data_on_every_rank_are_silent() -> None:
    sizes = [Process(), Process()]
    for name, process in zip("ab", sizes, strict=True):
        process.train(order(0), rows=name)
    one = Process(RANDOM, batch=8).train(order(5), rows="a")
    assert slugs([p.events for p in sizes], one.events) == []


def test_same_indices_with_rows_changed_at_random_are_not_sharded() -> None:
    every = []
    for rank in "ab":
        process = Process(RANDOM)
        process.train(order(0), rows=f"{rank}0 ").train(order(1), rows=f"{rank}1 ")
        every.append(process.events)
    one = Process(RANDOM, batch=8).train(order(5), rows="c0 ").train(order(6))
    assert slugs(every, one.events) == ["data/shard-overlap"]


def test_indices_of_own_parts_of_the_data_are_no_overlap() -> None:
    part = replace(PLAIN, samples=12)
    every = [Process(part).train(order(0, 12), rows=name) for name in "ab"]
    one = Process(RANDOM, batch=8).train(order(5), rows="c")
    assert slugs([p.events for p in every], one.events) == []


def test_samples_that_each_rank_splits_off_by_itself_overlap() -> None:
    """One index has the same row on both ranks by chance."""
    large = replace(PLAIN, samples=40)
    splits = [order(seed, 60)[:40] for seed in (0, 1)]
    splits[1].remove(splits[0][5])
    splits[1].insert(5, splits[0][5])
    every = []
    for rank, split in enumerate(splits):
        process = Process(large)
        for epoch in range(2):
            drawn = order(epoch, 40)[rank::2]
            _train_rows(process, drawn, split)
        every.append(process.events)
    one = Process(replace(RANDOM, samples=40), batch=8)
    _train_rows(one, order(7, 40), splits[0])
    assert slugs(every, one.events) == ["data/shard-overlap"]


def _train_rows(process: Process, drawn: Sequence[int], split: Sequence[int]) -> None:
    """Trains a pass of a split: an index has the row of another sample."""
    one = process.begin()
    for number, start in enumerate(range(0, len(drawn), process.batch)):
        part = drawn[start : start + process.batch]
        process.draw(one, part, number, tuple(f"row{split[i]}" for i in part))
        process.update()
    process.end(one, -(-len(drawn) // process.batch))


STREAM = replace(
    PLAIN,
    samples=None,
    sampler="_InfiniteConstantSampler",
    shuffles=False,
    is_iterable=True,
)


def _digests(parts: Iterable[int], name: str = "d") -> list[str]:
    return [f"{name}{number}" for number in parts]


def test_same_rows_of_a_stream_on_all_ranks_are_not_sharded() -> None:
    drawn = _digests(range(12))
    every = [Process(STREAM).train(drawn, whole=False).events for _ in range(2)]
    one = Process(STREAM, batch=8).train(_digests(range(24)), whole=False)
    assert slugs(every, one.events) == ["data/shard-overlap"]


def _not_whole(*drawn: Sequence[Any]) -> list[list[Any]]:
    return [Process(STREAM).train(keys, whole=False).events for keys in drawn]


def test_rows_of_one_stream_that_a_rank_is_ahead_in_are_not_sharded() -> None:
    drawn = _digests(range(60))
    every = _not_whole(drawn[20:], drawn[:40])
    assert told(every, single()) == (
        "data/shard-overlap",
        "ranks train on the same samples, some later than others: their streams are "
        "one",
        (
            "of the first 40 samples of each rank, none of them twice, 20 are on more "
            "than one rank; most are 20 draws apart",
        ),
    )
    (finding,) = judge.findings(every, single())
    assert finding.fix is not None
    assert finding.fix.code == "mine = itertools.islice(stream, rank, None, world_size)"


def test_rows_of_streams_in_orders_of_their_own_overlap() -> None:
    every = _not_whole(_digests(order(0, 60)), _digests(order(1, 60)))
    assert told(every, single())[1:] == (
        "shards overlap: ranks train on samples of other ranks",
        (
            "of the first 60 samples of each rank, none of them twice, 38 are on more "
            "than one rank",
        ),
    )


def test_first_rows_of_streams_that_are_seeded_alike_are_found() -> None:
    first = _digests(range(4), "first")
    every = _not_whole(first + _digests(range(80)), first + _digests(range(80), "e"))
    assert told(every, single())[1:] == (
        "all ranks begin with the same samples: their streams are seeded alike",
        (
            "the first 4 samples of pass 1 are the same on all 2 ranks, in the same "
            "order; later ones are not",
        ),
    )


def test_other_rows_of_a_stream_on_every_rank_are_silent() -> None:
    every = [
        Process(STREAM)
        .train(_digests(range(r, 24, 2)))
        .train(_digests(range(r, 24, 2)))
        for r in range(2)
    ]
    one = Process(STREAM, batch=8).train(_digests(range(24)))
    assert slugs([p.events for p in every], one.train(_digests(range(24))).events) == []


def test_rows_of_a_stream_changed_at_random_are_not_lost() -> None:
    every = [Process(STREAM).train(_digests(range(12), n)).events for n in "ab"]
    one = Process(STREAM, batch=8).train(_digests(range(24), "c"))
    assert slugs(every, one.events) == []


def test_same_constant_rows_of_a_stream_are_silent() -> None:
    every = [Process(STREAM).train(["zeros"] * 12).events for _ in range(2)]
    one = Process(STREAM, batch=8).train(["zeros"] * 24)
    assert slugs(every, one.events) == []


# data/sampler-padding


def test_sample_that_fills_the_last_shard_is_padding() -> None:
    drawn = order(0, 23)
    parts = drawn[::2], [*drawn[1::2], drawn[0]]
    loader = replace(PLAIN, samples=23)
    one = Process(replace(RANDOM, samples=23), batch=8).train(order(5, 23))
    assert told(ranks(parts, loader=loader), one.events) == (
        "data/sampler-padding",
        "samples are repeated to give every rank the same number: repeated samples "
        "count more than once",
        (
            "in pass 1 the single process draws 23 samples, the 2 ranks draw 12, 12; "
            "drawn more often than there: 1; on no rank: 0",
            "all repeats are in the last batches, of 4, 4 samples",
        ),
    )


def test_samples_that_fill_the_last_batches_are_padding() -> None:
    drawn = order(0, 18)
    parts = (
        [*drawn[:4], *drawn[8:12], *drawn[16:], *drawn[:2]],
        [
            *drawn[4:8],
            *drawn[12:16],
            *drawn[2:6],
        ],
    )
    loader = replace(PLAIN, samples=18)
    one = Process(replace(RANDOM, samples=18), batch=8).train(order(5, 18))
    assert slugs(ranks(parts, loader=loader), one.events) == ["data/sampler-padding"]


def test_sample_repeated_at_the_beginning_is_an_overlap() -> None:
    drawn = order(0, 23)
    # Both have it first.
    parts = drawn[::2], [drawn[0], *drawn[1::2]]
    loader = replace(PLAIN, samples=23)
    one = Process(replace(RANDOM, samples=23), batch=8).train(order(5, 23))
    assert slugs(ranks(parts, loader=loader), one.events) == ["data/shard-overlap"]


def test_samples_dropped_for_full_batches_are_silent() -> None:
    parts = order(0, 23)[:16:2], order(0, 23)[1:16:2]
    loader = replace(PLAIN, samples=23, drop_last=True)
    one = Process(replace(RANDOM, samples=23), batch=8).train(order(5, 23))
    assert slugs(ranks(parts, loader=loader), one.events) == []


# data/lost-samples


def test_data_that_are_sharded_twice_lose_samples() -> None:
    parts = order(0)[::4], order(0)[1::4]
    found = told(ranks(parts), single(5))
    assert found == (
        "data/lost-samples",
        "no rank trains on samples that the single process trains on",
        (
            "in pass 1 the single process draws 24 samples, the 2 ranks draw 6, 6; "
            "drawn more often than there: 0; on no rank: 12",
        ),
    )


def test_own_parts_that_are_sharded_again_lose_samples() -> None:
    part = replace(PLAIN, samples=12)
    found = told(ranks((order(0, 12)[::2], order(0, 12)[1::2]), loader=part), single(5))
    assert found[::2] == (
        "data/lost-samples",
        ("in pass 1 the single process draws 24 samples, the 2 ranks draw 6, 6",),
    )


def test_first_pass_that_is_not_over_loses_nothing() -> None:
    every = [Process().train(p[:8], whole=False).events for p in shards(0)]
    assert slugs(every, single(5)) == []


# data/sampling-weights


def test_weighted_sampler_that_ranks_do_not_have_is_found() -> None:
    loader = replace(RANDOM, sampler="WeightedRandomSampler")
    drawn = [*range(12)] * 2
    one = Process(loader, batch=8).train(drawn)
    assert told(ranks(shards(0)), one.events) == (
        "data/sampling-weights",
        "the single process draws samples with replacement, the ranks draw each once: "
        "the distribution of the samples is another",
        (
            "in pass 1 the single process draws 24 samples, 12 of them distinct, by "
            "WeightedRandomSampler",
            "the ranks draw 24 samples, 24 of them distinct, by DistributedSampler",
        ),
    )


def test_weighted_sampler_that_ranks_share_is_silent() -> None:
    loader = replace(RANDOM, sampler="WeightedRandomSampler")
    one = Process(loader, batch=8).train([*range(12)] * 2)
    drawn = [0, 1, 2, 3] * 3, [4, 5, 6, 7] * 3
    own = replace(PLAIN, sampler="DistributedWeightedSampler")
    assert slugs(ranks(drawn, loader=own), one.events) == []


def test_few_repeats_of_the_single_process_are_no_replacement() -> None:
    loader = replace(RANDOM, sampler="OwnSampler")
    one = Process(loader, batch=8).train([*range(20), 0, 1, 2, 3])
    assert slugs(ranks(shards(0)), one.events) == []


def test_samples_that_only_ranks_draw_with_replacement_are_found() -> None:
    drawn = [0, 1, 2, 3, 4, 5] * 2, [6, 7, 8, 9, 10, 11] * 2
    found = told(ranks(drawn), single(5))
    assert found == (
        "data/sampling-weights",
        "the ranks draw samples with replacement, the single process draws each once: "
        "the distribution of the samples is another",
        (
            "in pass 1 the single process draws 24 samples, the 2 ranks draw 12, 12; "
            "drawn more often than there: 12; on no rank: 12",
            "drawn again by the same rank: 12",
        ),
    )


# data/uneven-batches


def _uneven(*, hangs: bool) -> list[list[Any]]:
    long = Process(replace(PLAIN, samples=9)).train(range(9), hangs=hangs, whole=False)
    short = Process(replace(PLAIN, samples=8)).train(range(8))
    return [long.events, short.events]


def test_rank_that_draws_when_another_has_ended_is_uneven() -> None:
    one = Process(replace(RANDOM, samples=17), batch=8).train(order(5, 17))
    assert told(_uneven(hangs=True), one.events) == (
        "data/uneven-batches",
        "ranks have different numbers of batches: those with more wait for gradients "
        "that the others do not have",
        (
            "batches drawn in pass 1, per rank: 3, 2",
            "samples in them, per rank: 9, 8",
            "rank 1 had drawn all its batches when rank 0 drew batch 3",
        ),
    )


def test_last_batch_left_out_by_a_script_that_finished_is_silent() -> None:
    one = Process(replace(RANDOM, samples=17), batch=8).train(order(5, 17))
    assert slugs(_uneven(hangs=True), one.events, finished=True) == []
    assert slugs(_uneven(hangs=False), one.events) == ["data/uneven-batches"]


def test_other_numbers_of_batches_that_no_rank_waits_in_are_silent() -> None:
    # Within join(), ranks without a batch go along.
    one = Process(replace(RANDOM, samples=17), batch=8).train(order(5, 17))
    assert slugs(_uneven(hangs=False), one.events, finished=True) == []


@pytest.mark.parametrize("is_new", [False, True])
def test_last_batch_left_out_in_every_pass_is_silent(is_new: bool) -> None:  # noqa: FBT001
    every = [Process(), Process()]
    for turn in range(2):
        loader = replace(PLAIN, number=turn if is_new else 0)
        for process, part in zip(every, shards(turn), strict=True):
            process.train(part, loader=loader, whole=process is every[1])
        every[0].draw(replace(loader, turn=0 if is_new else turn), [99], 3)
    for process in every:  # and some of another pass
        process.train(
            range(4), whole=False, loader=replace(loader, number=loader.number)
        )
    found = slugs([p.events for p in every], single(5, 6))
    assert "data/uneven-batches" not in found
    assert "data/epoch-desync" not in found


def test_rank_that_ends_all_its_passes_before_another_is_uneven() -> None:
    # It has begun the second one alone, and is at its end when the other one waits.
    long = Process(replace(PLAIN, samples=9)).train(range(9))
    long.train(range(9), whole=False, hangs=True)
    short = Process(replace(PLAIN, samples=8)).train(range(8)).train(range(8))
    one = Process(replace(RANDOM, samples=17), batch=8)
    one.train(order(5, 17)).train(order(6, 17))
    every = [long.events, short.events]
    assert "data/uneven-batches" in slugs(every, one.events)
    assert "data/epoch-desync" not in slugs(every, one.events)
    assert "data/epoch-desync" in slugs(every, one.events, finished=True)


# data/epoch-desync


def test_rank_that_begins_its_next_pass_alone_is_in_another_epoch() -> None:
    long, short = Process(), Process()
    long.train(order(0)[:12]).train(order(1)[:8], whole=False)
    short.train(order(0)[12:20]).train(order(0)[8:20], whole=False)
    assert told([long.events, short.events], single(5)) == (
        "data/epoch-desync",
        "ranks are in different epochs: their shards have different numbers of "
        "batches, and each rank begins its next pass alone",
        (
            "batches drawn in pass 1, per rank: 3, 2",
            "at update 3, rank 1 draws from pass 2, rank 0 from pass 1",
            "samples that one update trains on twice: 4",
        ),
    )


def test_ranks_in_the_same_pass_at_every_update_are_silent() -> None:
    assert slugs(ranks(shards(0), shards(1)), single(5)) == []


# What is not judged.


def test_recording_of_one_pass_lists_what_it_does_not_cover() -> None:
    assert judge.not_compared(ranks(shards(0)), single(5)) == (
        NotCompared(
            what="the order over passes of the loader",
            why="a second pass did not begin in the time of the recording",
        ),
    )
    every = [Process().train(p[:8], whole=False).events for p in shards(0)]
    assert judge.not_compared(every, single(5))[0] == NotCompared(
        what="the samples of a pass of the loader",
        why="no pass came to its end on all ranks in the time of the recording",
    )


def test_recording_of_whole_passes_covers_all() -> None:
    assert judge.not_compared(ranks(shards(0), shards(1)), single(5, 6)) == ()


def test_second_pass_that_has_just_begun_alike_lists_that_its_order_is_open() -> None:
    def begun(*firsts: int) -> list[list[Any]]:
        return [
            Process().train(part).train([part[first]], whole=False).events
            for part, first in zip(shards(0), firsts, strict=True)
        ]

    assert slugs(begun(0, 0), single(5)) == []
    assert judge.not_compared(begun(0, 0), single(5)) == (
        NotCompared(
            what="the order over passes of the loader",
            why="the second pass has too few samples to tell it from the first",
        ),
    )
    assert judge.not_compared(begun(1, 1), single(5)) == ()


def test_script_without_a_loader_is_not_covered() -> None:
    assert judge.not_compared([[], []], []) == (
        NotCompared(
            what="the samples of the ranks",
            why="no loader gave training batches to all ranks",
        ),
    )


@pytest.mark.parametrize("slug", judge.SLUGS)
def test_slug_of_scripts_has_a_page(slug: str) -> None:
    assert pages.summary(slug)
