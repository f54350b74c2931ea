"""`ddpcheck run`: training scripts of many kinds, as their users start them."""

from __future__ import annotations

import importlib.util
import json
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.end_to_end.conftest import DATA, Ended, Terminal, without_progress

EXAMPLES = DATA.parents[1] / "examples"

IMPORTS = """\
import argparse, os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    DataLoader, DistributedSampler, IterableDataset, TensorDataset
)

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
"""
MODEL = """\
model = DistributedDataParallel(nn.Linear(6, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
SETUP = f"""\
{IMPORTS}
dist.init_process_group("gloo")
torch.manual_seed(0)
{MODEL}\
rows = torch.randn(64, 6)
data = TensorDataset(rows, rows[:, :3].sin())


def loader_of(data, **options):
    sampler = DistributedSampler(data, shuffle=False)
    return DataLoader(data, 8 // WORLD_SIZE, sampler=sampler, **options)


def update(x, y):
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    optimizer.step()

"""
TRAIN = """
for x, y in loader_of(data):
    update(x, y)
"""

ITERABLE = """
class Stream(IterableDataset):
    def __iter__(self):
        for index in range(RANK, 64, WORLD_SIZE):
            yield data[index]


for x, y in DataLoader(Stream(), 8 // WORLD_SIZE):
    update(x, y)
"""
PADDING = """
sequences = [(torch.randn(2 + i % 5, 6), torch.randn(3)) for i in range(64)]


def collate(batch):
    x = nn.utils.rnn.pad_sequence([x for x, _ in batch], batch_first=True)
    counts = torch.tensor([len(x) for x, _ in batch])
    return x, counts, torch.stack([y for _, y in batch])


for x, counts, y in loader_of(sequences, collate_fn=collate):
    optimizer.zero_grad()
    output = model(x) * (torch.arange(x.shape[1]) < counts[:, None])[..., None]
    mse_loss(output.sum(1), y).backward()
    optimizer.step()
"""
TWO_OPTIMIZERS = """
other = DistributedDataParallel(nn.Linear(3, 6))
others = torch.optim.Adam(other.parameters(), lr=0.01)
for x, y in loader_of(data):
    optimizer.zero_grad()
    others.zero_grad()
    output = model(x)
    (mse_loss(output, y) + mse_loss(other(output), x)).backward()
    optimizer.step()
    others.step()
"""
SCALER = """
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for x, y in loader_of(data):
    optimizer.zero_grad()
    scaler.scale(mse_loss(model(x), y)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    scaler.step(optimizer)
    scaler.update()
"""
SCHEDULER = """
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
for x, y in loader_of(data):
    update(x, y)
    scheduler.step()
"""
AVERAGED = """
average = torch.optim.swa_utils.AveragedModel(
    model.module, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
)
for x, y in loader_of(data):
    update(x, y)
    average.update_parameters(model.module)
"""
EVALUATION = """
def evaluate():
    model.eval()
    with torch.no_grad():
        for x, y in DataLoader(data, 16):
            print(mse_loss(model.module(x), y).item())
    model.train()


for epoch in range(2):
    for x, y in loader_of(data):
        update(x, y)
    if RANK == 0:
        evaluate()
    dist.barrier()
"""
# As Lightning looks at the first batches before it trains: these are all that there are
# on a rank, and nobody asks for one more.
FIRST_BATCHES = """
import itertools

valid = DataLoader(data, 32, sampler=DistributedSampler(data, shuffle=False))
with torch.no_grad():
    for x, y in itertools.islice(valid, min(2, len(valid))):
        model(x)
"""
YAML = """
import yaml

with open("settings.yaml") as stream:
    settings = yaml.safe_load(stream)
optimizer = torch.optim.AdamW(model.parameters(), **settings["optimizer"])
"""
FLOAT32 = """
accumulate = 4 // WORLD_SIZE
loader = DataLoader(data, 2, sampler=DistributedSampler(data, shuffle=False))
for number, (x, y) in enumerate(loader):
    mse_loss(model(x), y).div(accumulate).backward()
    if number % accumulate == accumulate - 1:
        optimizer.step()
        optimizer.zero_grad()
        model.module(torch.ones(2, 6, dtype=torch.float32))
"""
SHARED = """
import ddpcheck

generator = torch.Generator().manual_seed(1 + RANK)


def draw():
    x = rows[torch.randint(len(rows), (8 // WORLD_SIZE,), generator=generator)]
    return ddpcheck.global_batch({"x": x, "y": x[:, :3].sin()})


for _ in range(5):
    batch = draw()
    update(batch["x"], batch["y"])
    with torch.no_grad():
        assert len(draw()["x"]) == 8 // WORLD_SIZE
"""
SHARED_MICRO = """
import ddpcheck

generator = torch.Generator().manual_seed(1 + RANK)
accumulate = 4 // WORLD_SIZE
for _ in range(5):
    optimizer.zero_grad()
    for _ in range(accumulate):
        x = rows[torch.randint(len(rows), (3,), generator=generator)]
        x, y = ddpcheck.global_batch((x, x[:, :3].sin()))
        mse_loss(model(x), y).div(accumulate).backward()
    optimizer.step()
"""
RAGGED = """
sequences = [{"x": torch.randn(1 + i % 5, 6)} for i in range(64)]
for x in DataLoader(
    sequences,
    8 // WORLD_SIZE,
    sampler=DistributedSampler(sequences, shuffle=False),
    collate_fn=lambda batch: batch,
):
    optimizer.zero_grad()
    count = torch.tensor(float(sum(len(one["x"]) for one in x)))
    dist.all_reduce(count)
    loss = sum(model(one["x"]).square().sum() for one in x)
    (loss * WORLD_SIZE / count).backward()
    optimizer.step()
"""
# As collate functions that close over an Accelerator, which no pickle can hold.
LOCKED = PADDING.replace(
    "def collate(batch):",
    "import threading\n\nlock = threading.Lock()\n\n\n"
    "def collate(batch):\n    with lock:\n        return padded(batch)\n\n\n"
    "def padded(batch):",
)
# Classes of the script's own, and samples of which pickle knows no name.
CLASSES = """
from dataclasses import dataclass
from collections import namedtuple

Pair = namedtuple("Pair", "x y f")


@dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor


def collate(some):
    assert all(isinstance(one, Pair) for one in some)
    return Batch(torch.stack([s.x for s in some]), torch.stack([s.y for s in some]))


samples = [Pair(x, y, lambda: 1) for x, y in data]
for batch in loader_of(samples, collate_fn=collate):
    assert isinstance(batch, Batch)
    update(batch.x, batch.y)
"""
NAMED_TUPLES = """
from collections import namedtuple

Pair = namedtuple("Pair", "x y")
for pair in loader_of([Pair(x, y) for x, y in data]):
    assert isinstance(pair, Pair)
    update(pair.x, pair.y)
"""
# As Lightning trains: the gradients are there within the step alone.
CLOSURE = """
for x, y in loader_of(data):
    def closure():
        loss = mse_loss(model(x), y)
        loss.backward()
        return loss
    optimizer.step(closure)
    optimizer.zero_grad()
"""
# It ends after an update, so a probe starts it again, with another class Own.
OWN_MODEL = """
class Own(nn.Linear):
    pass


model = DistributedDataParallel(Own(6, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader_of(data):
    assert isinstance(model.module, Own)
    update(x, y)
    break
"""
SYNCHRONIZED = """
model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
if WORLD_SIZE > 1:
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
PACKED = """
sequences = [torch.randn(1 + i * i % 7, 6) for i in range(64)]
rnn = nn.utils.rnn


def collate(batch):
    return rnn.pad_sequence(batch, batch_first=True), torch.tensor([*map(len, batch)])


for x, counts in loader_of(sequences, collate_fn=collate):
    optimizer.zero_grad()
    packed = rnn.pack_padded_sequence(x, counts, True, enforce_sorted=False)
    unpacked, _ = rnn.pad_packed_sequence(packed, batch_first=True)
    is_valid = torch.arange(x.shape[1]) < counts[:, None]
    count = is_valid.sum()
    dist.all_reduce(count)
    (model(unpacked)[is_valid].square().sum() * WORLD_SIZE / count).backward()
    optimizer.step()
"""
STATIC_GRAPH = """
model = DistributedDataParallel(model.module, static_graph=True)
"""
ARGUMENTS = """
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--ranks", type=int, nargs=2, required=True)
args = parser.parse_args()
assert args.ranks == [RANK, WORLD_SIZE]
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
for _, (x, y) in zip(range(args.steps), loader_of(data)):
    update(x, y)
"""
IN_CHECK = """
import ddpcheck

assert ddpcheck.in_check()
"""
SHARD = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Blocks(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))


def sharded(model):
    mesh = init_device_mesh("cpu", (WORLD_SIZE,))
    fully_shard(model[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)


torch.manual_seed(0)
"""
SHARDED = """
model = sharded(Blocks())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
"""
SHARDED_META = """
with torch.device("meta"):
    model = Blocks()
sharded(model).to_empty(device="cpu")
for layer in (model[0], model[2]):
    layer.reset_parameters()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
SHARDED_STEPS = """
for number, (x, y) in enumerate(loader_of(data), start=1):
    model.set_requires_gradient_sync(number % 2 == 0)
    (mse_loss(model(x), y) / 2).backward()
    if number % 2 == 0:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1).full_tensor()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model(x)
"""
SHARDING = {
    "blocks": SHARDED + TRAIN,
    "meta device": SHARDED_META + TRAIN,
    "accumulation": SHARDED + SHARDED_STEPS,
}
# As language models are trained that draw windows of one long text.
WINDOWS = f"""\
{IMPORTS}
dist.init_process_group("gloo")
text = torch.randint(17, (4000,))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(17, 6)
        self.head = nn.Linear(6, 17)

    def forward(self, given, wanted):
        logits = self.head(self.rows(given).tanh())
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        return logits, loss


def window():
    starts = torch.randint(len(text) - 9, (4,)).tolist()
    given = torch.stack([text[start:start + 8] for start in starts])
    return given, torch.stack([text[start + 1:start + 9] for start in starts])


torch.manual_seed(1 + RANK)
model = DistributedDataParallel(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
pieces = 4 // WORLD_SIZE
with torch.no_grad():
    model(*window())
while True:
    for piece in range(pieces):
        model.require_backward_grad_sync = piece == pieces - 1
        _, loss = model(*window())
        (loss / pieces).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
GOOD = {
    "iterable dataset": ITERABLE,
    "workers": TRAIN.replace("(data)", "(data, num_workers=2)"),
    "padding": PADDING,
    "ragged": RAGGED,
    "packed": PACKED,
    "closure": CLOSURE,
    "collate with a lock": LOCKED,
    "classes of its own": CLASSES,
    "named tuples of its own": NAMED_TUPLES,
    "two optimizers": TWO_OPTIMIZERS,
    "scaler": SCALER,
    "scheduler": SCHEDULER,
    "averaged weights": AVERAGED,
    "static graph": STATIC_GRAPH + TRAIN,
    "evaluation on rank 0": EVALUATION,
    "all batches, and no more": FIRST_BATCHES + TRAIN,
    "yaml": YAML + TRAIN,
    "float32 alone": FLOAT32,
    "global batch": SHARED,
    "global batch in parts": SHARED_MICRO,
    "exit": IN_CHECK + TRAIN + "\ndist.destroy_process_group()\nsys.exit(0)\n",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """How a check ended, and its first finding.

    `line`: the line of the script that the finding is about.
    """

    ended: Ended
    slug: str | None
    summary: str
    compared: bool
    line: str

    @property
    def shown(self) -> str:
        return self.ended.stdout + self.ended.stderr


def _check(terminal: Terminal, *arguments: str) -> Checked:
    """Runs `ddpcheck run` on a script."""
    options = ("--json", "report.json", "--report-dir", "reports")
    ended = terminal.run("run", *options, *arguments)
    path = terminal.folder / "report.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    first = (found.get("findings") or [{}])[0]
    runs = [run for run in found.get("runs", ()) if run["mode"] == "ddp"]
    compared = [run["gradients"]["compared"] for run in runs]
    return Checked(
        ended=ended,
        slug=first.get("slug"),
        summary=first.get("summary", ""),
        compared=bool(compared) and all(compared),
        line=_line(terminal.folder, first.get("where")),
    )


def _line(folder: Path, where: str | None) -> str:
    file, _, number = (where or "").rpartition(":")
    if not file:
        return ""
    return (folder / file).read_text("utf-8").splitlines()[int(number) - 1].strip()


def _script(terminal: Terminal, *parts: str) -> str:
    return terminal.write("".join((SETUP, *parts)), "train.py")


def _sharded(terminal: Terminal, *parts: str) -> str:
    """Writes a script whose only model is in these parts."""
    return terminal.write("".join((SETUP.replace(MODEL, ""), *parts)), "train.py")


def _assert_equivalent(checked: Checked) -> None:
    assert (checked.ended.exit_code, checked.slug) == (0, None), checked.shown
    assert checked.compared
    assert "\nEQUIVALENT: " in checked.ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", GOOD)
def test_script_of_each_kind_is_equivalent(name: str, here: Terminal) -> None:
    if name == "yaml":
        pytest.importorskip("yaml")
        here.write("optimizer: {lr: 0.01, weight_decay: 0.1}\n", "settings.yaml")
    _assert_equivalent(_check(here, _script(here, GOOD[name])))


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARDING)
def test_sharded_script_is_equivalent(name: str, here: Terminal) -> None:
    _assert_equivalent(_check(here, _sharded(here, SHARD, SHARDING[name])))


@pytest.mark.slow
def test_script_with_synchronized_batch_norm_is_equivalent(here: Terminal) -> None:
    _assert_equivalent(_check(here, _sharded(here, SYNCHRONIZED, TRAIN)))


@pytest.mark.slow
def test_cause_is_found_where_a_probe_starts_the_script_again(here: Terminal) -> None:
    text = "\nimport functools\nmse_loss = functools.partial(mse_loss, reduction='sum')"
    checked = _check(here, _sharded(here, text, OWN_MODEL))
    assert checked.ended.exit_code == 1, checked.shown
    assert checked.slug == "loss/sum-reduction"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["iterable dataset", "padding", "scaler", "global batch", "closure"]
)
def test_script_of_each_kind_whose_loss_is_a_sum_is_divergent(
    name: str, here: Terminal
) -> None:
    text = "\nimport functools\nmse_loss = functools.partial(mse_loss, reduction='sum')"
    code = GOOD[name].replace("parameters(), 0.5", "parameters(), 1e9")  # no clip
    checked = _check(here, _script(here, text, code))
    assert checked.ended.exit_code == 1, checked.shown
    assert checked.slug == "loss/sum-reduction"
    assert "(x)" in checked.line, checked.line  # where the model is called


LOOKS = """
loader = loader_of(data)
shape = next(iter(loader))[0].shape
for x, y in loader:
    update(x, y)
"""


@pytest.mark.slow
def test_cause_is_found_where_the_script_looks_at_a_batch_first(here: Terminal) -> None:
    text = "\nimport functools\nmse_loss = functools.partial(mse_loss, reduction='sum')"
    checked = _check(here, _script(here, text, LOOKS))
    assert checked.ended.exit_code == 1, checked.shown
    assert checked.slug == "loss/sum-reduction"


SAME_ORDER = """
data = TensorDataset(rows, rows[:, :3].sin())
loader = DataLoader(data, 4, sampler=DistributedSampler(data, shuffle=True))
for epoch in range(3):
    for x, y in loader:
        update(x, y)
"""


@pytest.mark.slow
def test_proven_cause_comes_before_what_only_the_samples_show(here: Terminal) -> None:
    text = "\nimport functools\nmse_loss = functools.partial(mse_loss, reduction='sum')"
    checked = _check(here, _script(here, text, SAME_ORDER))
    assert checked.ended.exit_code == 1, checked.shown
    assert checked.slug == "loss/sum-reduction"
    assert "more finding: data/sampler-epoch" in checked.ended.stdout
    (reproduce,) = here.folder.glob("reports/*/reproduce.py")
    assert reproduce.read_text("utf-8").startswith('"""train.py: loss/sum-reduction')


EVALUATES = """
def evaluate():
    model.eval()
    with torch.no_grad():
        for x, y in loader_of(data):
            mse_loss(model(x), y).item()
    model.train()


rows[:, 0] = 1
rows[:{right}, 0] = 0
for x, y in loader_of(data):
    optimizer.zero_grad()
    mse_loss(model(x), y, reduction="sum" if x[0, 0] else "mean").backward()
    optimizer.step()
    evaluate()
"""


@pytest.mark.slow
@pytest.mark.parametrize("right", [0, 8], ids=["first step", "second step"])
def test_cause_is_found_where_the_script_evaluates_after_each_update(
    right: int, here: Terminal
) -> None:
    checked = _check(here, _script(here, EVALUATES.format(right=right)))
    assert checked.ended.exit_code == 1, checked.shown
    assert checked.slug == "loss/sum-reduction"


ONCE = """
import sys
if hasattr(sys, "is_started"):
    raise RuntimeError("started twice in one process")
sys.is_started = True
"""


@pytest.mark.slow
def test_script_that_starts_once_a_process_has_no_internal_error(
    here: Terminal,
) -> None:
    name = here.write(ONCE + SETUP + EVALUATES.format(right=0), "train.py")
    checked = _check(here, name)
    assert checked.ended.exit_code == 1, checked.shown
    assert "internal error" not in checked.shown


# As a library of configurations runs a command: one at a time in a process.
AT_A_TIME = """
def main():
{code}


if hasattr(sys, "is_running"):
    raise RuntimeError("started twice at a time in one process")
sys.is_running = True
try:
    main()
finally:
    del sys.is_running
"""


@pytest.mark.slow
def test_cause_is_found_where_the_script_runs_once_at_a_time(here: Terminal) -> None:
    code = textwrap.indent(EVALUATES.format(right=0), "    ")
    checked = _check(here, _script(here, AT_A_TIME.format(code=code)))
    assert checked.ended.exit_code == 1, checked.shown
    assert checked.slug == "loss/sum-reduction"


# As a command-line library calls its command: an exception is an exit code.
COMMAND = """
def train():
    for x, y in loader_of(data):
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss = loss * dist.get_world_size()
        loss.backward()
        optimizer.step()


try:
    train()
except Exception:
    sys.exit(1)
"""


@pytest.mark.slow
def test_cause_is_found_where_the_script_turns_exceptions_into_exits(
    here: Terminal,
) -> None:
    """A probe hides the group: get_world_size then raises."""
    checked = _check(here, _script(here, COMMAND))
    assert checked.ended.exit_code == 1, checked.shown
    assert checked.slug == "loss/double-world-scale"


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss", ["mse_loss(model.module(x), y)", "mse_loss(model.module.forward(x), y)"]
)
def test_line_that_goes_past_the_wrapper_is_named(loss: str, here: Terminal) -> None:
    code = f"""
for x, y in loader_of(data):
    optimizer.zero_grad()
    loss = {loss}
    loss.backward()
    optimizer.step()
"""
    checked = _check(here, _script(here, code))
    assert (checked.ended.exit_code, checked.slug) == (1, "ddp/forward-bypassed")
    is_called = "module(" in loss
    assert checked.line == (f"loss = {loss}" if is_called else "loss.backward()")


@pytest.mark.slow
def test_sharded_script_that_clips_its_part_alone_is_named(
    here: Terminal,
) -> None:
    clip = """
    parts = [p.grad.to_local() for p in model.parameters()]
    norm = torch.stack([part.norm() for part in parts]).norm()
    for part in parts:
        part.mul_(0.01 / norm)
"""
    train = TRAIN.replace("    update(x, y)\n", "    mse_loss(model(x), y).backward()")
    code = train + clip + "    optimizer.step()\n    optimizer.zero_grad()\n"
    sgd = SHARDED.replace("AdamW", "SGD")
    checked = _check(here, _sharded(here, SHARD, sgd, code))
    assert checked.ended.exit_code == 1, checked.shown
    assert checked.slug == "sync/clip-norm-local"
    assert checked.summary == (
        "each rank clips its parts of the gradients by the norm of these parts alone"
    )


@pytest.mark.slow
def test_sharded_script_with_the_factor_of_its_root_alone_is_named(
    here: Terminal,
) -> None:
    pytest.importorskip("torch", minversion="2.8")
    factor = "\nmodel.set_gradient_divide_factor(1.0)\n"
    total = (
        "\nimport functools\nmse_loss = functools.partial(mse_loss, reduction='sum')"
    )
    sgd = SHARDED.replace("AdamW", "SGD")
    checked = _check(here, _sharded(here, SHARD, sgd, total, factor, TRAIN))
    assert (checked.ended.exit_code, checked.slug) == (1, "fsdp/divide-factor")


@pytest.mark.slow
def test_script_without_loaders_that_never_ends_is_equivalent(
    here: Terminal,
) -> None:
    here.write(WINDOWS, "train.py")
    _assert_equivalent(_check(here, "train.py"))


# The loss takes more than the model is given.
DRAWS = """
import numpy as np
torch.manual_seed(RANK)
while True:
    for _ in range({pieces}):
        x = {draw}
        loss = mse_loss(model({given}), x[:, :3].sin())
        (loss / ({pieces})).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pieces", "given"),
    [(1, "x"), ("4 // WORLD_SIZE", "x"), (1, "x + model.module.bias.mean()")],
    ids=["one", "several", "computed of weights"],
)
def test_targets_that_the_script_draws_itself_are_those_of_all_ranks(
    pieces: object, given: str, terminal: Terminal
) -> None:
    code = DRAWS.format(pieces=pieces, given=given, draw="torch.randn(4, 6)")
    _assert_equivalent(_check(terminal, _script(terminal, code)))


@pytest.mark.slow
def test_fault_is_found_where_the_script_draws_its_targets_itself(
    here: Terminal,
) -> None:
    code = DRAWS.format(pieces=1, given="x", draw="torch.randn(4, 6)")
    planted = code.replace("x[:, :3].sin())", "x[:, :3].sin()) * WORLD_SIZE")
    checked = _check(here, _script(here, planted))
    assert checked.ended.exit_code == 1, checked.shown
    assert checked.slug == "loss/double-world-scale"


@pytest.mark.slow
@pytest.mark.parametrize(
    "draw",
    ["torch.tensor(np.random.rand(4, 6), dtype=rows.dtype)", "rows[torch.randperm(4)]"],
    ids=["drawn by a library", "of an order"],
)
def test_script_whose_targets_are_not_seen_is_not_checked(
    draw: str, terminal: Terminal
) -> None:
    train = DRAWS.format(pieces=1, given="x", draw=draw)
    ended = terminal.run("run", _script(terminal, train))
    assert (ended.exit_code, ended.stdout) == (3, "")
    assert ended.stderr.startswith(
        "ddpcheck: not checked: train.py has no DataLoader, and its loss takes more "
        "than the model is given: the batch of the single process is not known; pass "
        "what is drawn to ddpcheck.global_batch\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("was", "planted", "slug"),
    [
        ("loss / pieces", "loss / pieces * WORLD_SIZE", "loss/double-world-scale"),
        ("loss / pieces", "loss / 4", "loss/accum-normalizer"),
        ("== pieces - 1", "== 0", "sync/no-sync-off-by-one"),
    ],
)
def test_fault_in_accumulation_of_a_script_without_loaders_is_found(
    was: str, planted: str, slug: str, here: Terminal
) -> None:
    here.write(WINDOWS.replace(was, planted), "train.py")
    checked = _check(here, "train.py")
    assert (checked.ended.exit_code, checked.slug) == (1, slug), checked.shown


@pytest.mark.slow
def test_call_past_the_wrapper_in_a_script_without_loaders_is_named(
    here: Terminal,
) -> None:
    past = WINDOWS.replace("_, loss = model(", "_, loss = model.module(")
    checked = _check(here, here.write(past, "train.py"))
    assert checked.ended.exit_code == 1, checked.shown
    assert checked.slug == "ddp/forward-bypassed"


# Neither the noise nor the rows have a loader; of what the second model is given, the
# output of the first one stays as it is.
ADVERSARIES = f"""\
{IMPORTS}
dist.init_process_group("gloo")
torch.manual_seed(0)
rows = torch.randn(64, 6)
one = DistributedDataParallel(nn.Linear(4, 6))
two = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
two = DistributedDataParallel(two)
ones = torch.optim.Adam(one.parameters(), lr=0.01)
twos = torch.optim.Adam(two.parameters(), lr=0.01)
torch.manual_seed(1 + RANK)
for _ in range(5):
    real = rows[torch.randint(len(rows), (8 // WORLD_SIZE,))]
    made = one(torch.randn(8 // WORLD_SIZE, 4))
    twos.zero_grad()
    (two(made.detach()).sigmoid() - two(real).sigmoid()).mean().backward()
    twos.step()
    ones.zero_grad()
    two.requires_grad_(False)
    two(made).sigmoid().mean().neg().backward()
    ones.step()
    two.requires_grad_(True)
"""


@pytest.mark.slow
def test_two_models_of_a_script_without_loaders_are_equivalent(here: Terminal) -> None:
    checked = _check(here, here.write(ADVERSARIES, "train.py"))
    _assert_equivalent(checked)
    assert "no gradient" not in checked.ended.stdout


@pytest.mark.slow
def test_model_that_is_not_wrapped_in_a_script_without_loaders_is_named(
    here: Terminal,
) -> None:
    bare = ADVERSARIES.replace("two = DistributedDataParallel(two)", "")
    checked = _check(here, here.write(bare, "train.py"))
    assert checked.ended.exit_code == 1, checked.shown
    assert checked.slug == "ddp/wrapper-missing"


SPAWNS = f"""\
{IMPORTS.partition("RANK,")[0]}
import torch.multiprocessing as mp


def main(rank, world_size):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="12355")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    rows = torch.randn(64, 6)
    data = TensorDataset(rows, rows[:, :3].sin())
    model = DistributedDataParallel(nn.Linear(6, 3).to(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(data, 8 // world_size, sampler=DistributedSampler(data)):
        optimizer.zero_grad()
        mse_loss(model(x.to(rank)), y.to(rank)).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    world_size = torch.cuda.device_count()
    mp.spawn(main, args=(world_size,), nprocs=world_size)
"""


PROCESSES = """\
    processes = [
        mp.Process(target=main, args=(rank, world_size)) for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [SPAWNS, SPAWNS[: SPAWNS.index("    mp.spawn")] + PROCESSES],
    ids=["spawn", "processes"],
)
def test_script_that_spawns_its_ranks_is_equivalent(
    script: str, terminal: Terminal
) -> None:
    terminal.write(script, "train.py")
    _assert_equivalent(_check(terminal, "--cuda-as-cpu", "train.py"))


LAUNCHED = """
dist.init_process_group("gloo")
torch.manual_seed(0)
rows = torch.randn(64, 6)
data = TensorDataset(rows, rows[:, :3].sin())
model = DistributedDataParallel(nn.Linear(6, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(data, 4, sampler=DistributedSampler(data)):
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_script_that_a_launcher_starts_is_equivalent(here: Terminal) -> None:
    script = SPAWNS.partition("\n\ndef main")[0] + LAUNCHED
    here.write(script, "train.py")
    launcher = "-m", "torch.distributed.run", "--nproc-per-node", "{world_size}"
    _assert_equivalent(_check(here, *launcher, "train.py"))


@pytest.mark.slow
def test_sum_by_hand_in_ranks_that_the_script_starts_is_named(here: Terminal) -> None:
    summed = SPAWNS.replace(
        "        optimizer.step()\n",
        "        for parameter in model.parameters():\n"
        "            dist.all_reduce(parameter.grad)\n"
        "        optimizer.step()\n",
    ).replace(
        "DistributedDataParallel(nn.Linear(6, 3).to(rank), device_ids=[rank])",
        "nn.Linear(6, 3)",
    )
    summed = summed.replace("world_size = torch.cuda.device_count()", "world_size = 2")
    checked = _check(here, "--cuda-as-cpu", here.write(summed, "train.py"))
    assert checked.ended.exit_code == 1, checked.shown
    assert checked.slug == "sync/comm-hook-semantics"


STARTS_APART = """
torch.manual_seed(RANK)
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def average():
    pass


for x, y in loader_of(data):
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    average()
    optimizer.step()
"""
AVERAGES = """\
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= WORLD_SIZE
"""


@pytest.mark.slow
def test_model_that_starts_apart_and_is_not_wrapped_lacks_its_wrapper(
    here: Terminal,
) -> None:
    checked = _check(here, _sharded(here, STARTS_APART))
    assert checked.ended.exit_code == 1, checked.shown
    assert checked.slug == "ddp/wrapper-missing"
    assert "2 of them start with other values on other ranks" in checked.ended.stdout


@pytest.mark.slow
def test_model_that_starts_apart_and_is_averaged_lacks_a_broadcast(
    here: Terminal,
) -> None:
    code = STARTS_APART.replace("    pass\n", AVERAGES)
    checked = _check(here, _sharded(here, code))
    assert checked.ended.exit_code == 1, checked.shown
    assert checked.slug == "ddp/rank-local-weights"
    assert checked.summary == (
        "the ranks start from different weights: they are in no DDP object, which "
        "broadcasts those of rank 0"
    )


TENSOR_PARALLEL = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
model = nn.Linear(6, 4)
parallelize_module(model, init_device_mesh("cpu", (WORLD_SIZE,)), ColwiseParallel())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, in DataLoader(TensorDataset(rows), 8):  # the same on all ranks, as it must be
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
"""


OLD_FSDP = """
from torch.distributed.fsdp import FullyShardedDataParallel
parts = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
model = FullyShardedDataParallel(parts, device_id=torch.device("cpu"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "what"),
    [
        (TENSOR_PARALLEL, "tensor parallelism"),
        (OLD_FSDP + TRAIN, "FullyShardedDataParallel"),
    ],
)
def test_script_that_cuts_its_model_otherwise_is_not_checked(
    code: str, what: str, terminal: Terminal
) -> None:
    ended = terminal.run("run", _sharded(terminal, code))
    assert (ended.exit_code, ended.stdout) == (3, "")
    assert ended.stderr.endswith(
        f"ddpcheck: not checked: train.py cuts its model over the ranks by {what}: "
        "checked are scripts whose ranks have the whole model each, or cut it by "
        "fully_shard\n"
    )


@pytest.mark.slow
def test_script_that_wants_two_gpus_alone_is_equivalent(terminal: Terminal) -> None:
    few = "if torch.accelerator.device_count() < 2:\n    sys.exit()\n"
    name = _script(terminal, "\nmodel.to(RANK)\n", few, TRAIN)
    _assert_equivalent(_check(terminal, "--cuda-as-cpu", name))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "fix"),
    [
        ("0", "add --cuda-as-cpu before the script: it then finds as many devices"),
        ("3", "--world-sizes 3, or {world_size} in the script's arguments"),
    ],
)
def test_script_that_spawns_another_number_of_ranks_is_refused(
    number: str, fix: str, terminal: Terminal
) -> None:
    terminal.write(SPAWNS.replace("torch.cuda.device_count()", number), "train.py")
    ended = terminal.run("run", "train.py")
    line = 1 + SPAWNS.splitlines().index(SPAWNS.splitlines()[-1])
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr == (
        f"ddpcheck: train.py starts {number} processes itself, and 2 ranks are to be "
        "checked [script-fails]\n"
        "  expected   torch.multiprocessing.spawn with nprocs=2\n"
        f"  found      nprocs={number} (train.py:{line})\n"
        f"  fix        {fix}\n"
        "  more       ddpcheck --explain script-fails\n"
    )


DROPOUT = """
model.module.register_forward_hook(lambda _, __, y: nn.functional.dropout(y, 0.2))
torch.manual_seed(SEED)
"""


@pytest.mark.slow
def test_dropout_of_each_ranks_own_is_accepted_and_that_of_all_is_not(
    here: Terminal,
) -> None:
    own, same = DROPOUT.replace("SEED", "7 + RANK"), DROPOUT.replace("SEED", "7")
    checked = _check(here, _script(here, own, TRAIN))
    assert checked.ended.exit_code == 0, checked.shown
    assert checked.slug == "rng/stochastic-layer"
    assert "\nACCEPTED: " in checked.ended.stdout
    total = (
        "\nimport functools\nmse_loss = functools.partial(mse_loss, reduction='sum')"
    )
    checked = _check(here, _script(here, total, own, TRAIN))
    assert (checked.ended.exit_code, checked.slug) == (1, "loss/sum-reduction")
    checked = _check(here, _script(here, same, TRAIN))
    assert (checked.ended.exit_code, checked.slug) == (1, "rng/same-stream-all-ranks")


PASSES = """
loader = loader_of(data)
total = len(LENGTH)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total)
for x, y in loader:
    update(x, y)
    schedule.step()
"""


@pytest.mark.slow
def test_schedule_of_the_passes_is_accepted_and_that_of_one_process_is_not(
    here: Terminal,
) -> None:
    setup = SETUP.replace("8 // WORLD_SIZE", "4")
    here.write(setup + PASSES.replace("LENGTH", "loader"), "train.py")
    checked = _check(here, "train.py")
    assert checked.ended.exit_code == 0, checked.shown
    assert checked.slug == "sync/control-desync"
    assert "\nACCEPTED: " in checked.ended.stdout
    here.write(setup + PASSES.replace("LENGTH", "DataLoader(data, 4)"), "train.py")
    checked = _check(here, "train.py")
    assert (checked.ended.exit_code, checked.slug) == (1, "sync/control-desync")
    assert checked.line == "optimizer.step()"


CYCLE = """
loader = loader_of(data)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=len(loader))
for x, y in loader:
    def closure():  # as Lightning's
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)
    cycle.step()
"""


@pytest.mark.slow
def test_schedule_of_rate_and_betas_is_accepted_where_a_closure_runs_backward(
    here: Terminal,
) -> None:
    setup = SETUP.replace("8 // WORLD_SIZE", "4")
    here.write(setup + CYCLE, "train.py")
    checked = _check(here, "train.py")
    assert checked.ended.exit_code == 0, checked.shown
    assert checked.slug == "sync/control-desync"
    assert "\nACCEPTED: " in checked.ended.stdout


SUMS = """
def total(state, bucket):
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


model.register_comm_hook(None, total)
"""


@pytest.mark.slow
def test_hook_that_sums_gradients_is_named(here: Terminal) -> None:
    checked = _check(here, _script(here, SUMS, TRAIN))
    assert (checked.ended.exit_code, checked.slug) == (1, "sync/comm-hook-semantics")


REDIRECTED = """
inner = model.module if WORLD_SIZE > 1 else model


def step(x, y):
    output = inner(x)
    return (output - output.max(0).values).square().mul(y.square()).mean()


class _ForwardRedirection:  # as Lightning's
    def __call__(self, *args):
        before = inner.forward

        def redirected(*args):
            inner.forward = before
            return step(*args)

        inner.forward = redirected
        return model(*args)


for x, y in loader_of(data):
    optimizer.zero_grad()
    (_ForwardRedirection() if WORLD_SIZE > 1 else step)(x, y).backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_loss_that_couples_samples_in_a_redirected_forward_is_named(
    here: Terminal,
) -> None:
    setup = SETUP.replace(
        "DistributedDataParallel(nn.Linear(6, 3))",
        "nn.Linear(6, 3)\nmodel = DistributedDataParallel(model) "
        "if WORLD_SIZE > 1 else model",
    )
    checked = _check(here, here.write(setup + REDIRECTED, "train.py"))
    assert (checked.ended.exit_code, checked.slug) == (1, "loss/batch-coupled")


@pytest.mark.slow
def test_arguments_after_the_script_are_given_to_it(here: Terminal) -> None:
    name = _script(here, ARGUMENTS)
    own = ("--lr", "0.5", "--steps", "4", "--ranks", "{rank}", "{world_size}")
    checked = _check(here, "--steps", "2", name, *own)
    _assert_equivalent(checked)
    assert ", SGD, 2 steps; " in checked.ended.stdout


def test_module_of_a_package_reads_a_relative_path(terminal: Terminal) -> None:
    package = terminal.folder / "package"
    package.mkdir()
    (terminal.folder / "rate.txt").write_text("0.25", encoding="utf-8")
    (package / "__init__.py").touch()
    (package / "rates.py").write_text("RATE = float(open('rate.txt').read())\n")
    use = "\nfrom .rates import RATE\noptimizer.param_groups[0]['lr'] = RATE\n"
    (package / "train.py").write_text(SETUP + use + TRAIN, encoding="utf-8")
    checked = _check(terminal, "-m", "package.train")
    _assert_equivalent(checked)
    assert checked.ended.stdout.startswith("ddpcheck package.train: Linear, ")


@pytest.mark.slow
def test_script_that_raises_on_a_rank_is_divergent(here: Terminal) -> None:
    raising = TRAIN + "    if RANK == 1:\n        raise ValueError('rank 1 stops')\n"
    checked = _check(here, _script(here, raising))
    assert checked.ended.exit_code == 1, checked.shown
    assert checked.slug == "sync/rank-raised"
    assert "ValueError: rank 1 stops" in checked.shown


SLOW = """
import time
for step, (x, y) in enumerate(loader_of(data)):
    time.sleep(1000 if RANK == 1 and step == 1 else 0)
    update(x, y)
"""


@pytest.mark.slow
def test_rank_that_sleeps_for_long_is_divergent(here: Terminal) -> None:
    checked = _check(here, "--timeout-s", "40", _script(here, SLOW))
    assert checked.ended.exit_code == 1, checked.shown
    assert checked.slug == "sync/rank-hung"
    assert checked.line.startswith("time.sleep(1000 ")


@pytest.mark.slow
def test_script_that_hangs_at_its_end_is_divergent(here: Terminal) -> None:
    waiting = TRAIN + "if RANK == 0 and WORLD_SIZE > 1:\n    dist.barrier()\n"
    waiting += "else:\n    import time\n    time.sleep(1000 * (WORLD_SIZE - 1))\n"
    checked = _check(here, "--timeout-s", "40", _script(here, waiting))
    assert checked.ended.exit_code == 1, checked.shown
    assert checked.slug == "sync/rank-hung"


@pytest.mark.slow
def test_rank_that_may_be_slow_is_not_said_to_hang(here: Terminal) -> None:
    checked = _check(here, "--timeout-s", "15", _script(here, SLOW))
    assert checked.ended.exit_code == 3, checked.shown
    said = " ".join(checked.ended.stdout.split())
    assert "NOT CHECKED: rank 1 was still at work at the time limit, at " in said


UNEVEN = """
own = range(RANK, 64 - 8 * RANK, WORLD_SIZE)  # rank 1 has a batch less
for x, y in DataLoader(torch.utils.data.Subset(data, own), 8 // WORLD_SIZE):
    update(x, y)
"""


@pytest.mark.slow
def test_accepted_uneven_batches_cover_the_ranks_that_wait(here: Terminal) -> None:
    name = _script(here, UNEVEN)
    accepted = ("--accept", "data/uneven-batches=known", "--timeout-s", "20")
    checked = _check(here, *accepted, name)
    assert (checked.ended.exit_code, checked.slug) == (0, "data/uneven-batches")
    other = ("--accept", "data/sampler-epoch", "--timeout-s", "20")
    checked = _check(here, *other, name)
    assert checked.ended.exit_code == 1
    assert "accept: data/sampler-epoch was accepted but not found" in checked.shown
    # Another failure is none of theirs, though it comes after the last update.
    raises = "\nif RANK == 1:\n    raise KeyError('after the loop')\n"
    checked = _check(here, *accepted, _script(here, UNEVEN, raises))
    assert (checked.ended.exit_code, checked.slug) == (1, "sync/rank-raised")
    place = "train.py:33"  # of the loop over the loader
    told = f"accepted: data/uneven-batches at {place} in data W=2\n"
    assert told in checked.ended.stdout


PLATEAU = """
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
for epoch in range(3):
    for x, y in loader_of(data):
        update(x, y)
    scheduler.step(-epoch * RANK)
"""


@pytest.mark.slow
def test_ranks_that_part_after_the_steps_of_the_check_are_followed(
    here: Terminal,
) -> None:
    checked = _check(here, _script(here, PLATEAU))
    assert checked.ended.exit_code == 1, checked.shown
    assert checked.slug == "sync/control-desync"
    assert "SGD, 17 steps; " in checked.ended.stdout


TEACHER = """
import copy


def train():
    teacher = copy.deepcopy(model.module).requires_grad_(False)
    for x, y in loader_of(data):
        optimizer.zero_grad()
        output = model(x)
        (mse_loss(output, y) + mse_loss(output, teacher(x))).backward()
        optimizer.step()
        if RANK == 0:
            for own, new in zip(teacher.parameters(), model.module.parameters()):
                own.lerp_(new.detach(), 0.5)


train()
"""


@pytest.mark.slow
def test_teacher_in_a_variable_that_rank_0_alone_updates_is_named(
    here: Terminal,
) -> None:
    checked = _check(here, _script(here, TEACHER))
    assert checked.ended.exit_code == 1, checked.shown
    assert checked.slug == "state/ema-teacher-divergence"
    assert "after step 1 teacher." in checked.ended.stdout
    right = TEACHER.replace("RANK == 0", "True")
    _assert_equivalent(_check(here, _script(here, right)))


WHOLE_BATCHES = """
for x, y in DataLoader(data, 8):
    update(x.chunk(WORLD_SIZE)[PART], y.chunk(WORLD_SIZE)[PART])
"""


@pytest.mark.slow
def test_ranks_that_cut_the_same_part_of_a_whole_batch_overlap(here: Terminal) -> None:
    right = WHOLE_BATCHES.replace("PART", "RANK")
    _assert_equivalent(_check(here, _script(here, right)))
    checked = _check(here, _script(here, WHOLE_BATCHES.replace("PART", "0")))
    assert checked.ended.exit_code == 1, checked.shown
    assert checked.slug == "data/shard-overlap"


NO_LOADER = f"""
{IMPORTS}

class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x, y):
        return mse_loss(self.inner(x), y)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(WithLoss())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = torch.randn(64, 6)
generator = torch.Generator().manual_seed(1)
for _ in range(5):
    x = rows[torch.randint(len(rows), (8,), generator=generator)]
    optimizer.zero_grad()
    model(x, x[:, :3].sin()).backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_ranks_that_draw_the_same_samples_without_a_loader_are_divergent(
    here: Terminal,
) -> None:
    checked = _check(here, here.write(NO_LOADER, "train.py"))
    assert checked.ended.exit_code == 1, checked.shown
    assert checked.slug == "data/shard-overlap"
    assert "draw with a seed" in checked.ended.stdout
    right = NO_LOADER.replace("manual_seed(1)", "manual_seed(1 + RANK)")
    _assert_equivalent(_check(here, here.write(right, "train.py")))


LOSS_OUTSIDE = """
targets = rows[:, :3].sin()
for epoch in range(3):
    order = torch.randperm(64, generator=torch.Generator().manual_seed(epoch))
    for batch in order.split(16):
        own = batch[RANK::WORLD_SIZE]
        update(rows[own], targets[own])
"""


BY_HAND = """
targets = rows[:, :3].sin()
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)


def average():
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= WORLD_SIZE


for epoch in range(3):
    order = torch.randperm(64, generator=torch.Generator().manual_seed(epoch))
    for batch in order.split(16):
        own = batch[RANK::WORLD_SIZE]
        optimizer.zero_grad()
        scaler.scale(mse_loss(model(rows[own]), targets[own])).backward()
        scaler.unscale_(optimizer)
        average()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        scaler.step(optimizer)
        scaler.update()
"""
_CLIP = "        nn.utils.clip_grad_norm_(model.parameters(), 0.05)\n"
_AVERAGE = "        average()\n"
BY_HAND_BROKEN = {
    "sync/comm-hook-semantics": BY_HAND.replace(" /= WORLD_SIZE", " /= 1").replace(
        _CLIP, ""
    ),
    "sync/clip-before-reduce": BY_HAND.replace(_CLIP, "").replace(
        _AVERAGE, _CLIP + _AVERAGE
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("slug", BY_HAND_BROKEN)
def test_reduction_by_hand_of_scaled_gradients_is_named_where_it_is_wrong(
    slug: str, here: Terminal
) -> None:
    code = BY_HAND_BROKEN[slug]
    checked = _check(here, _sharded(here, code))
    assert (checked.ended.exit_code, checked.slug) == (1, slug), checked.shown
    assert "proof  confirmed" in checked.ended.stdout


@pytest.mark.slow
def test_reduction_by_hand_of_scaled_gradients_is_equivalent(here: Terminal) -> None:
    _assert_equivalent(_check(here, _sharded(here, BY_HAND)))


@pytest.mark.slow
def test_targets_that_no_loader_and_no_call_has_stay_with_their_inputs(
    terminal: Terminal,
) -> None:
    _assert_equivalent(_check(terminal, _script(terminal, LOSS_OUTSIDE)))


OWN_SAMPLER = """
class Batches:
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 8

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.epoch)
        for batch in torch.randperm(64, generator=generator).split(8):
            yield batch[RANK::WORLD_SIZE].tolist()


loader = DataLoader(data, batch_sampler=Batches())
for epoch in range(3):
    for x, y in loader:
        update(x, y)
"""


@pytest.mark.slow
def test_own_batch_sampler_whose_epoch_is_not_set_is_divergent(
    terminal: Terminal,
) -> None:
    checked = _check(terminal, _script(terminal, OWN_SAMPLER))
    assert checked.ended.exit_code == 1, checked.shown
    assert checked.slug == "data/sampler-epoch"
    assert checked.line == "for x, y in loader:"


SPARE = """
class Spare(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x):
        return self.used(x)
"""
ALWAYS_WRAPPED = f"""{SPARE}
model = DistributedDataParallel(Spare()OPTIONS)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


@pytest.mark.slow
def test_unused_parameter_of_a_model_that_is_always_wrapped_is_named(
    here: Terminal,
) -> None:
    """The reducer of a single process would raise as well."""
    model = ALWAYS_WRAPPED.replace("OPTIONS", "")
    checked = _check(here, _script(here, model, TRAIN))
    assert checked.ended.exit_code == 1, checked.shown
    assert checked.slug == "graph/unused-parameter"
    assert checked.line == "mse_loss(model(x), y).backward()"
    model = ALWAYS_WRAPPED.replace("OPTIONS", ", find_unused_parameters=True")
    _assert_equivalent(_check(here, _script(here, model, TRAIN)))


HOOKED = """
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook


def halved(group, bucket):
    return allreduce_hook(group, bucket).then(lambda reduced: reduced.value() * 0.5)


model.register_comm_hook(None, halved)
"""


@pytest.mark.slow
def test_hook_that_changes_gradients_of_one_process_too_is_equivalent(
    here: Terminal,
) -> None:
    checked = _check(here, _script(here, HOOKED, TRAIN))
    assert (checked.ended.exit_code, checked.slug) == (0, None), checked.shown


UNUSED = f"""{SPARE}
model = Spare()
if WORLD_SIZE > 1:
    model = DistributedDataParallel(model)
"""


@pytest.mark.slow
def test_cause_of_the_first_step_is_named_before_the_error_of_the_second(
    terminal: Terminal,
) -> None:
    setup = SETUP.replace("model = DistributedDataParallel(nn.Linear(6, 3))", UNUSED)
    checked = _check(terminal, terminal.write(setup + TRAIN, "train.py"))
    assert checked.ended.exit_code == 1, checked.shown
    assert checked.slug == "graph/unused-parameter"


LOADED = """
if RANK == 0:
    state = nn.Linear(6, 3, dtype=model.module.weight.dtype).state_dict()
    model.module.load_state_dict({name: value + 1 for name, value in state.items()})
"""


@pytest.mark.slow
def test_weights_that_one_rank_loads_after_wrapping_are_named(
    terminal: Terminal,
) -> None:
    checked = _check(terminal, _script(terminal, LOADED, TRAIN))
    assert checked.ended.exit_code == 1, checked.shown
    assert checked.slug == "ddp/rank-local-weights"


@pytest.mark.slow
def test_weights_that_all_ranks_load_after_wrapping_are_equivalent(
    terminal: Terminal,
) -> None:
    right = LOADED.replace("RANK == 0", "True").replace("value + 1", "value * 0 + 1")
    _assert_equivalent(_check(terminal, _script(terminal, right, TRAIN)))


@pytest.mark.slow
def test_samples_that_no_pickle_can_hold_are_refused_where_they_are_padded(
    terminal: Terminal,
) -> None:
    code = LOCKED.replace("(torch.randn(2 + i % 5, 6),", "(Row(2 + i % 5, 6),")
    row = """
import threading


def Row(*shape):
    made = torch.randn(*shape)
    made.lock = threading.Lock()
    return made

"""
    ended = terminal.run("run", _script(terminal, row, code))
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert without_progress(ended.stderr) == (
        "ddpcheck: the ranks' batches cannot be joined to the batch of the single "
        "process [script-fails]\n"
        "  expected   tensors that have a row for each sample, and one length on all "
        "ranks; else samples and a collate_fn that can be pickled\n"
        "  found      Sizes of tensors must match except in dimension 0. Expected size "
        "6 but got size 5 for tensor number 1 in the list.\n"
        "  fix        pad to a fixed length; or make the batch in a collate_fn without "
        "objects that hold locks, files or processes, of samples without them\n"
        "  more       ddpcheck --explain script-fails\n"
    )


BUCKETS = """
lengths = [2 + i // 8 for i in range(48)]
data = [(torch.randn(length, 6), torch.randn(3)) for length in lengths]
batches = [range(start, start + 8) for start in range(0, 40, 8)][RANK::WORLD_SIZE]
for x, y in DataLoader(data, batch_sampler=batches):
    update(x.sum(1), y)
"""


@pytest.mark.slow
def test_ranks_that_wait_are_found_where_their_batches_cannot_be_joined(
    here: Terminal,
) -> None:
    checked = _check(here, "--timeout-s", "20", _script(here, BUCKETS))
    assert (checked.ended.exit_code, checked.slug) == (1, "data/uneven-batches")
    assert "cannot be joined" in checked.ended.stdout


def test_script_that_trains_nothing_is_refused(terminal: Terminal) -> None:
    name = _script(terminal, "\nfor x, y in loader_of(data):\n    model(x)\n")
    ended = terminal.run("run", name)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr == (
        "ddpcheck: train.py ended without a step of an optimizer [script-no-training]\n"
        "  expected   a script that draws batches and steps a torch optimizer\n"
        "  found      the end of the script\n"
        "  fix        give it the arguments with which it trains; --cuda-as-cpu, if it "
        "ends for want of a GPU\n"
        "  more       ddpcheck --explain script-no-training\n"
    )


NEED = """
if WORLD_SIZE == 1:
    raise RuntimeError('needs two ranks')
"""
NEED_OF_COMMAND = """
try:
    if WORLD_SIZE == 1:
        raise RuntimeError('needs two ranks')
except Exception:
    sys.exit(1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("need", [NEED, NEED_OF_COMMAND], ids=["raises", "exits"])
def test_script_that_fails_as_a_single_process_is_refused(
    need: str, terminal: Terminal
) -> None:
    name = _script(terminal, need, TRAIN)
    ended = terminal.run("run", name)
    lines = (SETUP + need).splitlines()
    line = 1 + next(n for n, text in enumerate(lines) if "RuntimeError" in text)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr == (
        "ddpcheck: train.py fails as a single process [script-fails]\n"
        "  expected   a script that trains with WORLD_SIZE=1: the runs are compared "
        "with it\n"
        f"  found      RuntimeError: needs two ranks (train.py:{line})\n"
        "  fix        make this work first: torchrun --nproc-per-node 1 train.py ...\n"
        "  more       ddpcheck --explain script-fails\n"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A script of examples/README.md and what the table says of it."""

    file: str
    package: str
    exit_code: int
    slug: str | None


def _rows() -> list[Row]:
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    pattern = (
        r"^\| `run (scripts/\w+\.py)` \| .* "
        r"\| (\w+|-) \| (\d) \| (?:`(.*)`|-) \|$"
    )
    return [
        Row(file=file, package=package, exit_code=int(code), slug=slug or None)
        for file, package, code, slug in re.findall(pattern, text, re.MULTILINE)
    ]


ROWS = _rows()


def test_table_of_scripts_names_every_script() -> None:
    files = {f"scripts/{path.name}" for path in (EXAMPLES / "scripts").glob("*_*.py")}
    assert {row.file for row in ROWS} == files
    codes = {row.file: row.exit_code for row in ROWS}
    broken = [file for file in codes if not file.endswith("_fixed.py")]
    assert len(broken) >= 5
    assert [codes[file] for file in broken] == [1] * len(broken)
    fixed = [Path(file).stem + "_fixed.py" for file in broken]
    assert [codes[f"scripts/{file}"] for file in fixed] == [0] * len(fixed)


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.file)
def test_script_of_the_examples_gives_what_the_table_says(
    row: Row, terminal: Terminal
) -> None:
    if row.package != "-" and importlib.util.find_spec(row.package) is None:
        pytest.skip(f"{row.package} is not installed")
    checked = _check(terminal, str(EXAMPLES / row.file))
    assert checked.ended.exit_code == row.exit_code, checked.shown
    assert checked.slug == row.slug
    assert checked.compared
