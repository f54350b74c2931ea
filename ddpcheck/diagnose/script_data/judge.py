"""The data verdict: findings on what the ranks drew, certain ones only."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ddpcheck.diagnose.facts.text import listed
from ddpcheck.diagnose.script_data.shared import first_alike, shared
from ddpcheck.diagnose.script_data.streams import Key, Lanes, Pass, lanes
from ddpcheck.report.data import Evidence, Finding, Fix, NotCompared
from ddpcheck.run.script.events import Drawn, Updated

# Slugs that only scripts have: what they need is in no target.
SLUGS = ("data/epoch-desync", "data/lost-samples", "data/sampling-weights")

_ORDER = (  # in which findings are read: the first may cause the others
    "data/uneven-batches",
    "data/epoch-desync",
    "data/sampling-weights",
    "data/shard-overlap",
    "data/lost-samples",
    "data/sampler-epoch",
    "data/sampler-padding",
)

_RARE = 10**6  # a chance of one in so many is none
_MANY = 8  # repeats; without any where so many are expected: a chance of exp(-8)
_DISTINCT = 4  # samples that are the same on all ranks
_WEIGHTED = "WeightedRandomSampler"


def findings(
    ranks: Sequence[Sequence[Any]],
    single: Sequence[Any],
    *,
    finished: bool = False,
) -> list[Finding]:
    """Returns what is wrong with the data of the ranks, at most one finding a slug.

    Args:
        ranks: the events of each rank.
        single: those of the single process.
        finished: whether no rank failed or hung. Then a last batch that was drawn and
            not trained on is one that the script left out, and no rank waits.
    """
    found: dict[str, Finding] = {}
    parts = cut_by_hand(ranks)
    for each in lanes(ranks, single):
        loader = each.ranks[0][0].loader
        for one in _of(each, cut=parts, finished=finished):
            evidence = Evidence(**{**one.evidence, "loader": loader.number})
            placed = dataclasses.replace(
                one, evidence=evidence, where=loader.where or None
            )
            found.setdefault(one.slug, placed)
    return sorted(found.values(), key=lambda one: _ORDER.index(one.slug))


def not_compared(
    ranks: Sequence[Sequence[Any]], single: Sequence[Any]
) -> tuple[NotCompared, ...]:
    """Returns what the data verdict does not cover."""
    every = lanes(ranks, single)
    if not every:
        why = "no loader gave training batches to all ranks"
        return (NotCompared(what="the samples of the ranks", why=why),)
    found = []
    for number, each in enumerate(every, 1):
        what = f"loader {number}" if len(every) > 1 else "the loader"
        firsts = [stream[0] for stream in each.ranks]
        if not all(one.is_whole for one in firsts):
            why = "no pass came to its end on all ranks in the time of the recording"
            found.append(NotCompared(what=f"the samples of a pass of {what}", why=why))
        elif not each.single or not each.single[0].is_whole:
            why = "the single process did not come to the end of a pass"
            found.append(NotCompared(what=f"lost samples of {what}", why=why))
        if any(len(stream) == 1 for stream in each.ranks):
            why = "a second pass did not begin in the time of the recording"
            found.append(NotCompared(what=f"the order over passes of {what}", why=why))
        elif _is_short(each):
            why = "the second pass has too few samples to tell it from the first"
            found.append(NotCompared(what=f"the order over passes of {what}", why=why))
        if not all(each.keys(one) for one in firsts):
            why = "ranks have data of their own, and their rows were not recorded"
            found.append(NotCompared(what=f"the overlap of shards of {what}", why=why))
    return tuple(found)


def cut_by_hand(ranks: Sequence[Sequence[Any]]) -> bool | None:
    """Returns whether ranks train on a part of what they draw, None if unknown.

    A script may draw the global batch on every rank, and give the model its rows.
    """
    given = sum(sum(e.rows) for r in ranks for e in r if isinstance(e, Updated))
    last = [
        max((e.step for e in r if isinstance(e, Updated)), default=-1) for r in ranks
    ]
    drawn = sum(
        len(e.samples)
        for r, step in zip(ranks, last, strict=True)
        for e in r
        if isinstance(e, Drawn) and e.step <= step
    )
    if not given:
        return None
    # A quarter more: a loader may have drawn a batch ahead.
    return 4 * given * len(ranks) <= 5 * drawn


def _of(each: Lanes, *, cut: bool | None, finished: bool) -> list[Finding]:
    """Returns the findings on one loader."""
    lengths = _lengths(each, finished=finished)
    if lengths is not None and lengths.slug == "data/epoch-desync":
        return [lengths]
    # Each rank may train on its rows of what all draw.
    is_meant = cut or (cut is None and not _has_smaller(each))
    samples = (_samples(one, is_meant=bool(is_meant)) for one in _turns(each))
    found = lengths, _epoch(each), next(filter(None, samples), None)
    return [one for one in found if one is not None]


def _has_smaller(each: Lanes) -> bool:
    """Returns whether batches of ranks are smaller than those of the single process."""
    if not each.single:
        return False
    return max(s[0].batch for s in each.ranks) < each.single[0].batch


def _made(
    slug: str,
    summary: str,
    facts: Iterable[str],
    fix: str,
    code: str = "",
    evidence: Evidence | None = None,
) -> Finding:
    return Finding(
        slug=slug,
        link="data",
        runs=(),
        summary=summary,
        facts=tuple(facts),
        evidence=evidence or Evidence(),
        fix=Fix(text=fix, code=code),
    )


# How many batches.


def _lengths(each: Lanes, *, finished: bool) -> Finding | None:
    """Returns the finding where ranks draw different numbers of batches in a pass."""
    for number, passes in enumerate(zip(*each.ranks, strict=False)):
        short = [r for r, one in enumerate(passes) if one.is_whole]
        least = min((len(passes[r].drawn) for r in short), default=None)
        if least is None:
            continue
        longer = [r for r, one in enumerate(passes) if _goes_on(one, least, finished)]
        if not longer:
            continue
        first = next(r for r in short if len(passes[r].drawn) == least)
        ahead = each.ranks[first][number + 1 :]
        is_over = not finished and _has_fewer(each, first, longer[0])
        if ahead and ahead[0].drawn and not is_over:
            return _desync(each, number, first, longer[0])
        return None if finished else _uneven(passes, number, first, longer[0])
    return None


def _has_fewer(each: Lanes, rank: int, other: int) -> bool:
    """Returns whether a rank is at the end of all its passes, and another still draws.

    Until then it has begun each pass too early: it is a pass of another length.
    """
    counts = [sum(len(p.drawn) for p in each.ranks[r]) for r in (rank, other)]
    return each.ranks[rank][-1].is_whole and counts[0] < counts[1]


def _goes_on(one: Pass, least: int, finished: bool) -> bool:  # noqa: FBT001
    """Returns whether a rank trains on a batch after so many, or waits in it."""
    is_used = one.used > least
    return is_used or (one.is_last and not finished and len(one.drawn) > least)


def _uneven(passes: Sequence[Pass], number: int, first: int, other: int) -> Finding:
    batches = [len(one.drawn) for one in passes]
    return _made(
        "data/uneven-batches",
        "ranks have different numbers of batches: those with more wait for "
        "gradients that the others do not have",
        (
            f"batches drawn in pass {number + 1}, per rank: {listed(batches)}",
            f"samples in them, per rank: {listed(len(one.samples) for one in passes)}",
            f"rank {first} had drawn all its batches when rank {other} drew batch "
            f"{batches[first] + 1}",
        ),
        "give all ranks the same number of batches, the last ones empty or "
        "with the loss multiplied by 0",
        "with model.join():  # for batches with an update each",
    )


def _desync(each: Lanes, number: int, first: int, other: int) -> Finding:
    passes = [stream[number] for stream in each.ranks]
    ahead = each.ranks[first][number + 1]
    extra = passes[other].drawn[len(passes[first].drawn) :]
    facts = [
        f"batches drawn in pass {number + 1}, per rank: "
        f"{listed(len(one.drawn) for one in passes)}",
        f"at update {ahead.drawn[0].step + 1}, rank {first} draws from pass "
        f"{number + 2}, rank {other} from pass {number + 1}",
    ]
    twice = _within_updates(each, number, first, other) if each.by_index else 0
    if twice:
        facts.append(f"samples that one update trains on twice: {twice}")
    elif not extra[0].samples:
        facts.append("the samples have no numbers: repeats are not counted")
    return _made(
        "data/epoch-desync",
        "ranks are in different epochs: their shards have different numbers of "
        "batches, and each rank begins its next pass alone",
        facts,
        "give all ranks the same number of batches in a pass: drop or pad the last "
        "samples before they are cut into shards",
        "usable = indices[: len(indices) // world_size * world_size]\n"
        "mine = usable[rank::world_size]",
    )


def _within_updates(each: Lanes, number: int, first: int, other: int) -> int:
    """Returns how many samples two ranks train on in the same update, from here on."""
    drawn: list[dict[int, set[Key]]] = []
    for rank in (first, other):
        own: dict[int, set[Key]] = {}
        for one in each.ranks[rank][number:]:
            for batch in one.drawn:
                own.setdefault(batch.step, set()).update(batch.samples)
        drawn.append(own)
    return sum(
        len(drawn[0][s] & drawn[1][s]) for s in drawn[0].keys() & drawn[1].keys()
    )


# The order.


def _epoch(each: Lanes) -> Finding | None:
    """Returns the finding where every pass of a shuffling sampler has one order."""
    shared = min(len(stream) for stream in each.ranks)
    if shared < 2 or not all(_repeats(each, stream) for stream in each.ranks):  # noqa: PLR2004
        return None
    moves = len(each.single) > 1 and not _is_prefix(each, each.single)
    shuffles = all(one.loader.shuffles for stream in each.ranks for one in stream)
    if not moves and not shuffles:
        return None
    first = each.keys(each.ranks[0][0])
    facts = [
        f"passes on each rank: {listed(len(stream) for stream in each.ranks)}; all "
        f"have the same order, of {len(first)} samples on rank 0",
    ]
    if moves:
        facts.append("the single process draws another order in every pass")
    elif len(each.single) > 1:
        facts.append("the single process repeats its order, too")
    if each.by_index and not shuffles and list(first) == sorted(first, key=_number):
        return _made(
            "data/sampler-epoch",
            "the ranks' samples come in the order of the data in every epoch: only "
            "the single process shuffles",
            facts,
            "shuffle on the ranks as well, in another order in every epoch",
            "sampler = DistributedSampler(data, shuffle=True)\n"
            "sampler.set_epoch(epoch)  # before every epoch",
        )
    return _made(
        "data/sampler-epoch",
        "the ranks' samples come in the same order in every epoch: the "
        "sampler's epoch is not set",
        facts,
        "call sampler.set_epoch(epoch) before every epoch, on all ranks",
        "sampler.set_epoch(epoch)",
    )


def _number(key: Key) -> float:
    return float(key) if isinstance(key, int | float) else 0.0


def _is_short(each: Lanes) -> bool:
    """Returns whether shuffled passes begin alike, as they may do by chance."""
    shuffles = all(one.loader.shuffles for stream in each.ranks for one in stream)
    begin_alike = all(_is_prefix(each, stream) for stream in each.ranks)
    repeats = all(_repeats(each, stream) for stream in each.ranks)
    return shuffles and begin_alike and not repeats


def _repeats(each: Lanes, stream: Sequence[Pass]) -> bool:
    """Returns whether all passes have one order, which shuffling would not give."""
    if not _is_prefix(each, stream):
        return False
    first, *others = [each.keys(one) for one in stream]
    chances = 1
    total = len(set(first)) if stream[0].is_whole else (stream[0].loader.samples or 0)
    for other in others:
        chances *= math.perm(total, min(len(first), len(other), total))
    return chances >= _RARE


def _is_prefix(each: Lanes, stream: Sequence[Pass]) -> bool:
    """Returns whether all passes begin with the same samples, as far as they go."""
    first, *others = stream
    if not each.keys(first):
        return False
    for other in others:
        if other.loader.number != first.loader.number and not (
            first.rows and _begin_alike(first.rows, other.rows)
        ):
            return False  # another loader: of other data, perhaps
        if not _begin_alike(each.keys(first), each.keys(other)):
            return False
    return True


def _begin_alike(one: Sequence[Key], two: Sequence[Key]) -> bool:
    size = min(len(one), len(two))
    return size > 0 and one[:size] == two[:size]


# Which samples.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """The passes of all ranks that have this number, and one of the single process."""

    number: int
    each: Lanes
    passes: tuple[Pass, ...]
    single: Pass | None

    @property
    def known(self) -> list[tuple[Key, ...]]:
        """What each rank drew."""
        return [self.each.keys(one) for one in self.passes]

    @property
    def text(self) -> str:
        """How it is called."""
        return f"pass {self.number}"


def _turns(each: Lanes) -> Iterator[_Turn]:
    whole = next((one for one in each.single if one.is_whole), None)
    for index, passes in enumerate(zip(*each.ranks, strict=False)):
        same = each.single[index] if index < len(each.single) else None
        if same is None or not same.is_whole:
            same = whole or same
        yield _Turn(number=index + 1, each=each, passes=passes, single=same)


def _samples(turn: _Turn, *, is_meant: bool) -> Finding | None:
    """Returns the finding on the samples of a pass.

    Args:
        turn: the pass.
        is_meant: whether ranks may draw the same samples on purpose.
    """
    same = _same(turn)
    if same is not None:
        return None if is_meant else same
    return _weights(turn) or _shards(turn)


def _same(turn: _Turn) -> Finding | None:
    """Returns the finding where all ranks draw the same samples in the same order."""
    known = turn.known
    size = min(map(len, known))
    first = known[0][:size]
    if len(set(first)) < _DISTINCT or any(own[:size] != first for own in known):
        return None
    return _overlap(
        turn,
        "all ranks train on the same samples: the data are not sharded",
        (
            f"in {turn.text} the first {size} samples are the same on all "
            f"{len(known)} ranks, in the same order",
        ),
        Evidence(repeated=size, of_pass=size),
    )


def _overlap(
    turn: _Turn, summary: str, facts: Iterable[str], evidence: Evidence
) -> Finding:
    return _made(
        "data/shard-overlap", summary, facts, *_sharding(turn.passes[0]), evidence
    )


def _sharding(one: Pass) -> tuple[str, str]:
    """Returns what gives every rank samples of its own, in words and as code."""
    if one.loader.number < 0:  # no loader draws them
        return (
            "give every rank samples of its own: draw with a seed that depends on "
            "the rank",
            "generator = torch.Generator().manual_seed(seed + rank)",
        )
    text = "shuffle with the same seed on all ranks, and give every rank its own part"
    if one.loader.is_iterable:
        return text, "mine = itertools.islice(stream, rank, None, world_size)"
    if (one.loader.replicas or 1) > 1:
        return (
            "the sampler shards: give it the rank of its process, and on all ranks the "
            "same data and the same seed",
            "generator = torch.Generator().manual_seed(0)\n"
            "data, rest = random_split(data, lengths, generator=generator)\n"
            "sampler = DistributedSampler(data, world_size, rank, seed=0)",
        )
    return (
        text,
        "sampler = DistributedSampler(data)\n"
        "loader = DataLoader(data, batch_size, sampler=sampler)",
    )


def _weights(turn: _Turn) -> Finding | None:
    """Returns the finding where only the single process draws samples repeatedly."""
    each = turn.each
    if turn.single is None or not each.by_index:
        return None
    own = _first_turn(each, turn.single)
    drawn = [_first_turn(each, one) for one in turn.passes]
    total = sum(map(len, drawn))
    repeats, others = _repeated(own), _repeated([k for keys in drawn for k in keys])
    name = turn.single.loader.sampler
    names = {one.loader.sampler for one in turn.passes}
    is_weighted = name == _WEIGHTED and _WEIGHTED not in names
    least = 1 if is_weighted else _MANY
    if repeats < least or others >= len(drawn) or 10 * total < 9 * len(own):
        return None
    return _made(
        "data/sampling-weights",
        "the single process draws samples with replacement, the ranks draw each "
        "once: the distribution of the samples is another",
        (
            f"in {turn.text} the single process draws {len(own)} samples, "
            f"{len(set(own))} of them distinct, by {name}",
            f"the ranks draw {total} samples, {total - others} of them distinct, by "
            f"{', '.join(sorted(names))}",
        ),
        "shard the weighted sampler: draw with one seed on all ranks, and give every "
        "rank its own part",
        "generator = torch.Generator().manual_seed(seed + epoch)\n"
        "drawn = torch.multinomial(weights, count, True, generator=generator)\n"
        "mine = drawn[rank::world_size].tolist()",
    )


def _first_turn(each: Lanes, one: Pass) -> tuple[Key, ...]:
    """Returns what was drawn of an endless pass before samples may come again."""
    keys = each.keys(one)
    size = one.loader.samples
    return keys if one.is_whole or size is None else keys[:size]


def _repeated(keys: Iterable[Key]) -> int:
    return sum(count - 1 for count in Counter(keys).values())


def _shards(turn: _Turn) -> Finding | None:
    """Returns the finding on shards that are not the parts of one pass."""
    each, single = turn.each, turn.single
    if not all(one.is_whole for one in turn.passes):
        return _of_parts(turn) or _of_streams(turn)
    if single is not None and single.loader.sampler == _WEIGHTED:
        return None
    is_read = single is not None and single.is_whole
    if single is not None and single.is_whole:
        expected = Counter(each.keys(single))
    elif each.by_index and _has_all(turn.passes, single):
        expected = Counter(range(turn.passes[0].loader.samples or 0))
    else:
        return None
    if not all(turn.known) or not expected:
        return _by_count(turn)
    if each.by_index and _repeated(expected.elements()):
        return None  # drawn with replacement: ranks may share samples
    return _of_wholes(turn, expected, is_read=is_read)


def _has_all(passes: Sequence[Pass], single: Pass | None) -> bool:
    """Returns whether a pass is known to have each sample of the data once."""
    names = {one.loader.sampler for one in passes}
    whole = {"RandomSampler", "SequentialSampler", "DistributedSampler"}
    sizes = {one.loader.samples for one in passes}
    if single is not None:
        names.add(single.loader.sampler)
        sizes.add(single.loader.samples)
    if any(_repeated(one.samples) for one in (*passes, *([single] if single else ()))):
        return False
    return names <= whole and len(sizes) == 1 and None not in sizes


def _of_parts(turn: _Turn) -> Finding | None:
    """Returns the finding on ranks that share samples in the middle of a pass.

    Ranks that draw with replacement share some by chance, and repeat their own, too.
    So do data that have a row several times.
    """
    each, passes = turn.each, turn.passes
    size = passes[0].loader.samples
    is_iterable = passes[0].loader.is_iterable
    if is_iterable or any(one.is_whole for one in passes) or not size:
        return None
    known = [keys[: size // len(passes)] for keys in turn.known]
    own = _first_turn(each, turn.single) if turn.single else ()
    if _repeated(own) or any(_repeated(keys) for keys in known):
        return None
    shared = _repeated(key for keys in known for key in keys)
    if shared < _MANY or _WEIGHTED in {one.loader.sampler for one in passes}:
        return None
    return _overlap(
        turn,
        "shards overlap: ranks train on samples of other ranks",
        (
            f"of the first {listed(map(len, known))} samples of {turn.text}, per rank, "
            f"{shared} are on more than one rank; the data have {size}",
            *_of_other_data(each),
        ),
        Evidence(repeated=shared, of_pass=sum(map(len, known))),
    )


def _of_streams(turn: _Turn) -> Finding | None:
    """Returns the finding on ranks that share what no rank draws again so soon."""
    known = turn.known
    if not all(known):
        return None
    found, first = shared(known), first_alike(known)
    if found is None and not first:
        return None
    if found is None:
        return _overlap(
            turn,
            "all ranks begin with the same samples: their streams are seeded alike",
            (
                f"the first {first} samples of {turn.text} are the same on all "
                f"{len(known)} ranks, in the same order; later ones are not",
            ),
            Evidence(repeated=first, of_pass=min(map(len, known))),
        )
    fact = (
        f"of the first {found.size} samples of each rank, none of them twice, "
        f"{found.samples} are on more than one rank"
    )
    summary = "shards overlap: ranks train on samples of other ranks"
    if found.lag is not None:
        summary = (
            "ranks train on the same samples, some later than others: their streams "
            "are one"
        )
        fact += f"; most are {found.lag} draws apart"
    return _overlap(
        turn,
        summary,
        (fact,),
        Evidence(repeated=found.samples, of_pass=found.size * len(known)),
    )


def _of_other_data(each: Lanes) -> list[str]:
    """Returns the fact that an index is another sample on another rank, if it is."""
    sizes = {stream[0].loader.samples for stream in each.ranks}
    if each.by_index or each.ranks[0][0].loader.is_iterable or len(sizes) > 1:
        return []
    return ["an index is another sample on another rank: each has data of its own"]


def _of_wholes(turn: _Turn, expected: Counter[Key], *, is_read: bool) -> Finding | None:
    """Returns the finding on passes that came to their ends on all ranks.

    Args:
        turn: the pass.
        expected: the samples that it should have, with their copies.
        is_read: whether these are what the single process draws.
    """
    known, world = turn.known, len(turn.passes)
    union = Counter(key for keys in known for key in keys)
    extra = {k: c - max(1, expected[k]) for k, c in union.items()}
    extra = {k: count for k, count in extra.items() if count > 0}
    repeats, total = sum(extra.values()), sum(expected.values())
    # Rows that are changed at random have other digests: then only numbers count.
    lost = max(0, total - sum(union.values()) + repeats)
    if turn.each.by_index:
        lost = sum((expected - union).values())
    whose = "the single process draws" if is_read else "the data have"
    facts = [
        f"in {turn.text} {whose} {total} samples, the {world} ranks draw "
        f"{listed(map(len, known))}; drawn more often than there: {repeats}; on no "
        f"rank: {lost}",
    ]
    evidence = Evidence(repeated=repeats, missing=lost, of_pass=total)
    if not repeats:
        return _lost(turn, facts, evidence) if is_read else None
    facts += _of_other_data(turn.each)
    if not lost and _fills_up(turn, extra):
        return _padding(turn, facts, evidence)
    within = sum(map(_repeated, known))
    if turn.each.by_index and within >= _MANY:
        return _replaced(facts, within)
    if all(set(keys) >= set(expected) for keys in known):
        summary = "every rank trains on all samples: the data are not sharded"
    elif lost > _dropped(turn):
        summary = (
            "shards overlap, and samples are left out: the shards are parts of "
            "different permutations"
        )
    else:
        summary = "shards overlap: ranks train on samples of other ranks"
    return _overlap(turn, summary, facts, evidence)


def _replaced(facts: Sequence[str], within: int) -> Finding:
    return _made(
        "data/sampling-weights",
        "the ranks draw samples with replacement, the single process draws each once: "
        "the distribution of the samples is another",
        (*facts, f"drawn again by the same rank: {within}"),
        "draw without replacement on the ranks as well",
    )


def _fills_up(turn: _Turn, extra: dict[Key, int]) -> bool:
    """Returns whether repeats are few, and each is in the last batch of a rank."""
    if sum(extra.values()) > _dropped(turn):
        return False
    last = {
        key
        for one, keys in zip(turn.passes, turn.known, strict=True)
        for key in keys[len(keys) - len(one.drawn[-1].samples) :]
    }
    return extra.keys() <= last


def _padding(turn: _Turn, facts: Sequence[str], evidence: Evidence) -> Finding:
    last = [len(one.drawn[-1].samples) for one in turn.passes]
    return _made(
        "data/sampler-padding",
        "samples are repeated to give every rank the same number: repeated "
        "samples count more than once",
        (*facts, f"all repeats are in the last batches, of {listed(last)} samples"),
        "drop the last samples in the single-process run as well, or give "
        "repeated samples a weight of 0",
        "DistributedSampler(data, drop_last=True)",
        evidence,
    )


def _dropped(turn: _Turn) -> int:
    """Returns how many samples are less than one batch of all ranks.

    So many may be left out, or come twice, to give all ranks equal, full batches.
    """
    return len(turn.passes) * max(one.batch for one in turn.passes) - 1


def _lost(turn: _Turn, facts: Sequence[str], evidence: Evidence) -> Finding | None:
    if evidence["missing"] <= _dropped(turn):
        return None
    return _made(
        "data/lost-samples",
        "no rank trains on samples that the single process trains on",
        facts,
        "shard the data once: the parts of all ranks together have all samples",
        "mine = indices[rank::world_size]  # of all indices, on every rank",
        evidence,
    )


def _by_count(turn: _Turn) -> Finding | None:
    """Returns the finding on lost samples where samples cannot be told apart."""
    single = turn.single
    if single is None or not single.is_whole:
        return None
    own, drawn = len(single.samples), [len(one.samples) for one in turn.passes]
    facts = [
        f"in {turn.text} the single process draws {own} samples, the "
        f"{len(drawn)} ranks draw {listed(drawn)}",
    ]
    return _lost(turn, facts, Evidence(missing=own - sum(drawn), of_pass=own))
