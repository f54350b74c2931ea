"""A batch that is a list of samples: every rank collates its own, one process all."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ddpcheck import api
from ddpcheck.checking import checking
from ddpcheck.compare import tree
from ddpcheck.plugin import fixture
from ddpcheck.ranks.pool import Pool
from ddpcheck.report.data import Report
from ddpcheck.target import collating
from ddpcheck.target.options import Options
from ddpcheck.target.target import Target, TargetRef

pytestmark = pytest.mark.usefixtures("no_file")

TEXT = """\
import torch
import torch.distributed as dist
from torch import nn
cross_entropy = nn.functional.cross_entropy
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11))
def batch():
    g = torch.Generator().manual_seed(1)
    return [torch.randint(1, 11, (n + 1,), generator=g) for n in (3, 7, 2, 5, 9, 4, 6)]
def collate(samples):
    pad = nn.utils.rnn.pad_sequence
    inputs = pad([s[:-1] for s in samples], batch_first=True)
    targets = pad([s[1:] for s in samples], batch_first=True, padding_value=-100)
    return inputs, targets
"""
MEAN_OF_TOKENS = """\
def loss(output, target):
    return cross_entropy(output.flatten(0, 1), target.flatten())
"""
MEAN_OF_ALL_TOKENS = """\
def loss(output, target):
    total = cross_entropy(output.flatten(0, 1), target.flatten(), reduction="sum")
    world, count = 1, (target != -100).sum().double()
    if dist.is_initialized():
        world = dist.get_world_size()
        dist.all_reduce(count)
    return world * total / count
"""
BOXES = """\
import torch
from torch import nn
def model():
    torch.manual_seed(0)
    return nn.Conv2d(3, 6, 3, padding=1)
def batch():
    g = torch.Generator().manual_seed(0)
    return [
        (torch.randn(3, 8, 8, generator=g), torch.rand(n, 6, generator=g))
        for n in (1, 3, 0, 2, 4, 1, 2, 5)
    ]
def collate(samples):
    images, boxes = zip(*samples)
    for number, rows in enumerate(boxes):
        rows[:, 0] = number  # into the sample itself
    return torch.stack(images), torch.cat(boxes)
def of_samples(output, targets):
    image, n = targets[:, 0].long(), len(output)
    each = (output.mean((2, 3))[image, :5] - targets[:, 1:]).square().sum(1)
    count = torch.bincount(image, minlength=n).clamp(min=1)
    return each.new_zeros(n).index_add(0, image, each) / count
def loss(output, targets):
    return LOSS
"""
MEAN = "of_samples(output, targets).mean()"
WEIGHED = "of_samples(output, targets).sum() * W / 8"
WORLD = """\
import torch.distributed as dist
"""
# Images of several sizes, and the loss inside forward.
LISTS = """\
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 5)
    def forward(self, images, boxes):
        found = torch.stack([self.conv(i[None]).mean((2, 3))[0] for i in images])
        pairs = zip(self.head(found), boxes)
        losses = [nn.functional.mse_loss(f.expand_as(b), b) for f, b in pairs]
        return {"loss": torch.stack(losses).mean()}
def model():
    torch.manual_seed(0)
    return Net()
g = torch.Generator().manual_seed(0)
batch = [
    {"image": torch.randn(3, 4 + n, 8, generator=g), "box": torch.rand(n, 5)}
    for n in (1, 3, 2, 4)
]
def collate(samples):
    return {"images": [s.pop("image") for s in samples],
            "boxes": [s.pop("box") for s in samples]}
"""
# All samples meet in the loss; images are of several sizes.
COUPLED = """\
import torch
from torch import nn
class Net(nn.Conv2d):
    def forward(self, *images):
        return torch.stack([super(Net, self).forward(i).mean((1, 2)) for i in images])
def model():
    torch.manual_seed(0)
    return Net(3, 4, 3, padding=1)
def batch():
    g = torch.Generator().manual_seed(0)
    sizes = (1, 3, 2, 4, 1, 2, 5, 3)
    return [(torch.randn(3, 4 + n, 8, generator=g), torch.rand(4)) for n in sizes]
def collate(samples):
    images, targets = zip(*samples)
    return list(images), torch.stack(targets)
def loss(output, target):
    return (output @ target.T).softmax(1).diagonal().log().mean().neg()
"""
STEP = """\
def train_step(model, optimizer, batch):
    inputs, targets = batch
    optimizer.zero_grad()
    loss(model(inputs), targets).backward()
    optimizer.step()
"""
MICRO = """\
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    for inputs, targets in zip(batch[0].chunk(2), batch[1].chunk(2)):
        (loss(model(inputs), targets) / 2).backward()
    optimizer.step()
"""
# A data collator takes the labels out of the samples; the output is a dict.
INSIDE = (
    TEXT
    + """\
class Net(nn.Sequential):
    def forward(self, tokens, labels):
        logits = super().forward(tokens)
        loss = cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}
def model():
    torch.manual_seed(0)
    return Net(nn.Embedding(11, 6), nn.Linear(6, 11))
texts, pair = batch, collate
def batch():
    return [{"tokens": text, "labels": text} for text in texts()]
def collate(samples):
    tokens, labels = pair([s.pop("labels") for s in samples])
    return {"tokens": tokens, "labels": labels}
"""
)
DROPOUT = """\
import torch
from torch import nn
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
def batch():
    g = torch.Generator().manual_seed(0)
    return [(torch.randn(4, generator=g), i % 3) for i in range(6)]
def collate(samples):
    rows, labels = zip(*samples)
    # 0.1 is another number in float32.
    return torch.stack(rows) * torch.full((4,), 0.1), torch.tensor(labels)
loss = nn.CrossEntropyLoss()
"""


def _checked(pool: Pool, folder: Path, source: str, **options: object) -> Report:
    path = folder / "target.py"
    path.write_text(source, encoding="utf-8")
    given = {"world_sizes": (2, 3), "modes": ("ddp",), **options}
    return checking.check(pool, TargetRef(path=str(path)), Options(**given))  # type: ignore[arg-type]


def _verdicts(report: Report) -> list[str]:
    return [f"{run.mode} {run.world_size} {run.verdict}" for run in report.runs]


def _weighed() -> str:
    rest = "(dist.get_world_size() if dist.is_initialized() else 1)"
    return WORLD + BOXES.replace("LOSS", WEIGHED.replace("W", rest))


def test_token_mean_of_padded_text_has_a_local_normalizer(
    pool: Pool, tmp_path: Path
) -> None:
    report = _checked(pool, tmp_path, TEXT + MEAN_OF_TOKENS, world_sizes=(2, 3))
    assert _verdicts(report) == ["ddp 2 divergent", "ddp 3 divergent"]
    (found,) = report.findings
    assert (found.slug, found.runs) == ("loss/local-normalizer", (0, 1))
    assert found.fix is not None
    assert found.fix.verified is True
    left_out = {(item.what, item.why) for item in report.not_compared}
    assert (
        "output output",
        "shape (4, 7, 11) on a rank is not a part of (7, 9, 11) by samples",
    ) in left_out
    script = tmp_path / "reproduce.py"
    script.write_text(report.reproduce, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1, ended.stderr
    assert "relative difference  1.weight.grad" in ended.stdout


@pytest.mark.parametrize("end", ["", STEP], ids=["plain", "own-step"])
def test_token_mean_over_all_ranks_is_equivalent(
    end: str, pool: Pool, tmp_path: Path
) -> None:
    report = _checked(pool, tmp_path, TEXT + MEAN_OF_ALL_TOKENS + end)
    assert _verdicts(report) == ["ddp 2 equivalent", "ddp 3 equivalent"]


@pytest.mark.parametrize("end", ["", STEP], ids=["plain", "own-step"])
def test_mean_over_samples_of_ragged_boxes_is_equivalent_with_even_shards(
    end: str, pool: Pool, tmp_path: Path
) -> None:
    report = _checked(
        pool,
        tmp_path,
        BOXES.replace("LOSS", MEAN) + end,
        world_sizes=(2, 4),
        modes=("dp", "ddp"),
        simulate=(8,),
    )
    assert _verdicts(report) == [
        "dp 2 equivalent",
        "dp 4 equivalent",
        "ddp 2 equivalent",
        "ddp 4 equivalent",
        "sim 8 equivalent",
    ]


def test_ragged_boxes_are_shared_out_unevenly(pool: Pool, tmp_path: Path) -> None:
    report = _checked(pool, tmp_path, _weighed(), world_sizes=(3, 5))
    assert _verdicts(report) == ["ddp 3 equivalent", "ddp 5 equivalent"]
    assert [run.shard_sizes for run in report.runs] == [(3, 3, 2), (2, 2, 2, 1, 1)]


def test_mean_over_samples_of_uneven_shards_names_them(
    pool: Pool, tmp_path: Path
) -> None:
    source = BOXES.replace("LOSS", MEAN)
    report = _checked(pool, tmp_path, source, world_sizes=(3,))
    (found,) = report.findings
    assert found.slug == "loss/uneven-shard"
    assert found.fix is not None
    assert found.fix.verified is True
    # The targets have a row for each box.
    assert "len(target)" not in found.fix.code


def test_lists_of_images_with_the_loss_in_forward_are_equivalent(
    pool: Pool, tmp_path: Path
) -> None:
    report = _checked(pool, tmp_path, LISTS, world_sizes=(2, 4))
    assert _verdicts(report) == ["ddp 2 equivalent", "ddp 4 equivalent"]


def test_loss_of_all_samples_is_verified_on_lists_of_images(
    pool: Pool, tmp_path: Path
) -> None:
    report = _checked(pool, tmp_path, COUPLED)
    (found,) = report.findings
    assert (found.slug, found.runs) == ("loss/batch-coupled", (0, 1))
    assert found.fix is not None
    assert found.fix.verified is True


def test_loss_inside_forward_of_padded_text_is_judged_at_one_padding(
    pool: Pool, tmp_path: Path
) -> None:
    report = _checked(pool, tmp_path, INSIDE, world_sizes=(2,))
    (found,) = report.findings
    assert found.slug == "loss/local-normalizer"
    assert "`batch.labels != -100`" in found.summary
    assert found.fix is not None
    assert found.fix.verified is True


def test_micro_batches_of_padded_text_are_distinguished(
    pool: Pool, tmp_path: Path
) -> None:
    source = TEXT + MEAN_OF_TOKENS + MICRO
    report = _checked(pool, tmp_path, source, world_sizes=(2,))
    (found,) = report.findings
    assert found.slug == "loss/accum-normalizer"
    assert found.fix is not None
    assert found.fix.verified is True


def test_collate_has_the_same_default_dtype_on_ranks_and_noise_follows_samples(
    pool: Pool, tmp_path: Path
) -> None:
    report = _checked(pool, tmp_path, DROPOUT, noise="sample")
    assert [run.verdict for run in report.runs] == ["equivalent", "equivalent"]
    assert report.runs[0].dtype == "float64"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_padded_text_is_judged_in_low_precision(
    dtype: str, pool: Pool, tmp_path: Path
) -> None:
    report = _checked(pool, tmp_path, TEXT + MEAN_OF_ALL_TOKENS, dtype=dtype)
    assert [run.verdict for run in report.runs] == ["equivalent", "equivalent"]


def test_collate_is_an_argument_in_python() -> None:
    def model() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Linear(4, 1)

    def pad(samples: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)
        wide = torch.nn.functional.pad(rows, (0, 4 - rows.shape[1]))
        return wide, torch.tensor([[float(len(s))] for s in samples])

    batch = [torch.ones(n) for n in (1, 2, 3, 4)]
    with contextlib.closing(api.WarmRanks()) as ranks:
        report = fixture.Checker(ranks)(
            model,
            batch,
            torch.nn.functional.mse_loss,
            collate=pad,
            world_sizes=[2],
            modes=["ddp"],
        )
    assert report.verdict == "equivalent"


@pytest.mark.parametrize(
    ("batch", "is_made"),
    [
        ([torch.ones(2)] * 3, True),
        ([(torch.ones(2), 1), (torch.ones(3), 0)], True),
        ([{"x": 1}, {"x": 2}], True),
        ([torch.ones(2, 4), torch.ones(2)], False),
        ([{"x": torch.ones(2)}, torch.ones(2)], False),
        ((torch.ones(2, 4), torch.ones(2)), False),
        ({"x": torch.ones(2)}, False),
    ],
    ids=[
        "list",
        "two-tuples",
        "two-dicts",
        "loader",
        "dict-and-tensor",
        "pair",
        "dict",
    ],
)
def test_list_of_samples_is_collated_and_a_pair_is_not(
    batch: object, *, is_made: bool
) -> None:
    target = Target(name="t", model=None, batch=lambda: batch, collate=len)
    found = target.batch_at(0)
    assert isinstance(found, tree.Collated) is is_made
    assert tree.contents(found) is (batch if not is_made else found.made)


def test_rows_of_samples_are_collated_anew() -> None:
    def collate(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        samples[0].zero_()  # of a copy
        return {"all": torch.cat(samples), "n": torch.tensor(len(samples))}

    made = collating.collated([torch.full((n,), float(n)) for n in (1, 3, 2)], collate)
    doubled = tree.replace(made, lambda _, t: t * 2)
    shard = tree.shard(doubled, 1, 2)
    assert shard.made["all"].tolist() == [0.0, 0.0]
    assert int(shard.made["n"]) == 2
    turned = tree.permute(doubled, torch.tensor([2, 0]))
    assert turned.made["all"].tolist() == [0.0, 0.0, 2.0]
    assert tree.strided_shard(made, 0, 2).made["all"].tolist() == [0.0, 2.0, 2.0]
    assert [t.tolist() for t in made.samples] == [[1.0], [3.0] * 3, [2.0] * 2]
    empty = tree.rows(made, slice(0))
    assert (empty.samples, empty.made["all"].shape) == ([], (0,))
    assert dict(tree.tensors(made)).keys() == {"all", "n"}
