"""The table of factors: what its rows say, and where it finds a factor."""

from __future__ import annotations

import string

import pytest

from ddpcheck.diagnose.facts.factors import Reading
from ddpcheck.diagnose.rules.loss_factors import TABLE, WORDS
from ddpcheck.report.data import Finding
from tests.corpus.programs import programs
from tests.diagnose import recorded

pytestmark = pytest.mark.usefixtures("causes_alone")


def findings(name: str) -> tuple[Finding, ...]:
    """Returns the findings of a program's recorded case."""
    program = programs()[name]
    return recorded.replay(program.path, program.options, name).findings


@pytest.mark.parametrize("place", TABLE, ids=" ".join)
def test_words_of_a_row_are_known(place: Reading) -> None:
    row = TABLE[place]
    texts = (row.summary, *row.facts, row.code)
    words = {word for text in texts for _, word, *_ in string.Formatter().parse(text)}
    assert words - {None} <= WORDS.keys()


def test_step_that_divides_gradients_is_named_as_the_place() -> None:
    (found,) = findings("loss/gradients-divided-by-the-number-of-ranks")
    assert found.slug == "loss/missing-world-scale"
    assert found.summary == (
        "after backward the step divides the gradients by 2, and DDP has averaged "
        "them already: every gradient is 1/2 of the single-process one"
    )
    assert found.facts == (
        "compared with the single-process run, the step multiplies the gradients by "
        "0.5, 0.5 on the ranks after backward",
        "before it does so, they are right",
    )
    assert found.fix is not None
    assert (found.fix.text, found.fix.code, found.fix.proof) == (
        "remove the division: DDP divides by the world size",
        "optimizer.step()  # without parameter.grad /= world_size",
        "intervention",
    )


def test_step_that_multiplies_gradients_is_named_as_the_place() -> None:
    (found,) = findings("loss/gradients-multiplied-by-the-number-of-ranks")
    assert (found.slug, found.summary) == (
        "loss/double-world-scale",
        "after backward the step multiplies the gradients by 2, but DDP has averaged "
        "those of means: every gradient is 2 times the single-process one",
    )


@pytest.mark.parametrize(
    ("name", "slug", "count"),
    [
        ("samples", "loss/uneven-shard", "samples"),
        ("count", "loss/local-normalizer", "batch.1 != -100"),
    ],
)
def test_step_that_divides_by_its_own_count_is_named_as_the_place(
    name: str, slug: str, count: str
) -> None:
    (found,) = findings(f"loss/gradients-divided-by-the-own-{name}")
    assert (found.slug, found.summary) == (
        slug,
        "after backward the step divides the gradients by the rank's own number of "
        f"`{count}`, which differs between ranks",
    )
    assert found.fix is not None
    assert (
        found.fix.code.splitlines()[-1] == "parameter.grad.mul_(world / n)  # of a sum"
    )


def test_division_by_the_world_size_is_found_beside_shards_of_two_sizes() -> None:
    first, second = findings(
        "loss/mean-divided-by-the-number-of-ranks-and-a-smaller-shard"
    )
    assert (first.slug, first.summary) == (
        "loss/missing-world-scale",
        "the loss is a mean over the shard and is also divided by 2, which DDP does, "
        "too",
    )
    assert second.slug == "loss/uneven-shard"


def test_unequal_micro_batches_are_the_place_without_a_count_that_fits() -> None:
    (found,) = findings("loss/masked-means-of-pieces-weighed-by-their-size")
    assert (found.slug, found.summary) == (
        "loss/accum-normalizer",
        "each micro-batch's loss is divided by a count of its own; on ranks the "
        "micro-batches hold other samples, so the mean of these means differs",
    )
