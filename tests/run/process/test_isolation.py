"""No case meets what another one left: whatever the order, the numbers are the same."""

from __future__ import annotations

import dataclasses
import random
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ddpcheck.checking import checking
from ddpcheck.ranks.pool import SOLO, Pool
from ddpcheck.report import data as reports
from ddpcheck.report.data import Report
from ddpcheck.run.process import fingerprint, isolation
from ddpcheck.run.session import session
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef

HEAD = """\
import os, random, subprocess, sys, warnings
import numpy
import torch
import torch.distributed as dist
from torch import nn

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))

def batch():
    g = torch.Generator().manual_seed(1)
    return torch.randn(8, 4, generator=g), torch.arange(8) % 3

def loss(output, target):
    if dist.is_initialized():
        deed()
    return nn.functional.cross_entropy(output, target)
"""
# Code of a rank in every step; its own run is unaffected. The victim uses Tanh.
DEEDS = {
    "settings": "torch.manual_seed(3); random.seed(3); numpy.random.seed(3); "
    "os.environ['RANK'] = '7'; os.chdir('/'); sys.argv.append('x'); "
    "torch.set_default_dtype(torch.float32); torch.set_num_threads(2); "
    "warnings.simplefilter('error')",
    "device": "torch.set_default_device('meta')",
    "patch": "torch.tanh = lambda x: 2 * x",
    "group": "dist.is_initialized() and dist.destroy_process_group()",
    "child": "subprocess.Popen(['sleep', '600'])",
    "dies": "os._exit(3)",
}


def _source(name: str) -> str:
    if name == "divergent":
        return HEAD.replace("deed()", "pass").replace("t)\n", "t, reduction='sum')\n")
    if name == "victim":
        return HEAD.replace("nn.ReLU", "nn.Tanh").replace("deed()", "pass")
    return f"{HEAD}\ndef deed():\n    {DEEDS[name]}\n"


# Two of them, which import modules of one name from their folders.
SCALED = """
from helper import SCALE
def loss(output, target):
    return SCALE * nn.functional.cross_entropy(output, target)
"""
OPTIONS = Options(world_sizes=(2,), modes=("ddp",), fix=False, steps=2)


def _plain(report: Report) -> str:
    """Returns the report as JSON without what two runs may differ in."""
    runs = tuple(dataclasses.replace(run, seconds=0.0) for run in report.runs)
    return reports.to_json(dataclasses.replace(report, runs=runs, seconds=0.0))


@pytest.fixture
def targets(tmp_path: Path) -> dict[str, Path]:
    """Target files by name."""
    found = {}
    for name in (*DEEDS, "divergent", "victim"):
        found[name] = tmp_path / f"{name}.py"
        found[name].write_text(_source(name), encoding="utf-8")
    for scale in (1, 2):
        folder = tmp_path / f"scale{scale}"
        folder.mkdir()
        (folder / "helper.py").write_text(f"SCALE = {scale}\n", encoding="utf-8")
        found[folder.name] = folder / "scaled.py"
        found[folder.name].write_text(HEAD + SCALED, encoding="utf-8")
    return found


@pytest.fixture
def engine(pool: Pool) -> Iterator[Pool]:
    """The pool; the ranks of these tests go with them."""
    yield pool
    for world_size in (SOLO, 2, 4):
        pool.retire(world_size)


def _check_all(
    pool: Pool, targets: dict[str, Path], options: Options, seed: int
) -> dict[str, str]:
    names = sorted(targets)
    random.Random(seed).shuffle(names)  # noqa: S311 (an order, no secret)
    found = {}
    for name in names:
        report = checking.check(pool, TargetRef(path=str(targets[name])), options)
        found[name] = _plain(report)
    return found


@pytest.mark.slow
def test_order_of_cases_and_what_they_leave_change_no_byte(
    engine: Pool, targets: dict[str, Path]
) -> None:
    first, again = (_check_all(engine, targets, OPTIONS, seed) for seed in (1, 2))
    last_words = {"dies"}  # of gloo, with the number of a port
    for name in targets.keys() - last_words:
        assert again[name] == first[name], name
    found = {name: reports.from_json(text) for name, text in first.items()}
    wrong = {n: [f.slug for f in r.findings] for n, r in found.items() if r.findings}
    assert wrong == {"divergent": ["loss/sum-reduction"], "dies": ["sync/rank-died"]}
    verdicts = {r.verdict for name, r in found.items() if name not in wrong}
    assert verdicts == {"equivalent"}
    scale = [found[f"scale{n}"].runs[0].losses.worst for n in (1, 2)]
    assert scale[0] != scale[1]


@pytest.mark.slow
def test_crews_side_by_side_change_no_byte(
    engine: Pool, targets: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    some = {name: targets[name] for name in ("victim", "patch")}
    options = dataclasses.replace(OPTIONS, world_sizes=(2, 4))
    together = _check_all(engine, some, options, seed=3)
    monkeypatch.setattr(session, "_MAX_BUSY_RANKS", 1)
    assert _check_all(engine, some, options, seed=4) == together


class Device:
    """A kind of device, as torch.cuda is one, of which there is one or none."""

    def __init__(self, *, is_there: bool) -> None:
        self.is_there, self.seeds = is_there, [0]

    def is_available(self) -> bool:
        """Returns whether there is one."""
        return self.is_there

    def manual_seed_all(self, seed: int) -> None:
        """Keeps the seed, as one that was never initialised does."""
        self.seeds.append(int(seed))


def test_seeds_reach_the_devices_that_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    present, absent = Device(is_there=True), Device(is_there=False)
    monkeypatch.setattr(torch, "cuda", present)
    monkeypatch.setattr(torch, "xpu", absent)
    monkeypatch.delattr(torch, "mtia", raising=False)
    isolation.ignore_absent_devices.__wrapped__()
    for device in (present, absent):
        device.manual_seed_all(7)
    assert (present.seeds, absent.seeds) == ([0, 7], [0])
    with pytest.raises(ValueError, match="invalid literal"):
        absent.manual_seed_all("seven")  # type: ignore[arg-type]


def test_deterministic_algorithms_are_put_back_where_they_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state, calls = [(True, True)], []
    monkeypatch.setattr(
        torch, "are_deterministic_algorithms_enabled", lambda: state[-1][0]
    )
    monkeypatch.setattr(
        torch, "is_deterministic_algorithms_warn_only_enabled", lambda: state[-1][1]
    )
    monkeypatch.setattr(
        torch,
        "use_deterministic_algorithms",
        lambda mode, *, warn_only: calls.append((mode, warn_only)),
    )
    seeds: list[int] = []  # this process draws other numbers, which stay as they are
    monkeypatch.setattr(isolation, "seed_everything", seeds.append)
    with isolation.isolated():
        pass
    assert seeds == [0]
    assert calls == []  # each call imports torch's compiler
    with isolation.isolated():
        state.append((True, False))
    assert calls == [(True, True)]


CALLABLE = """
class Loss:
    def __init__(self):
        self.seen = {}
    def __call__(self, size):
        self.seen[size] = range(size)
keep = Loss()
"""
CLOSURE = """
def made():
    seen = {}
    def inner(size):
        seen[size] = range(size)
    return inner
keep = made()
"""
ATTRIBUTE = """
def keep(size):
    keep.seen = size
"""
DEFAULT = """
def keep(size, *, seen=[]):
    seen.append(size)
"""
CACHED = """
import functools
@functools.cache
def keep(size):
    return range(size)
"""
ARRAY = """
import numpy as np
seen = np.zeros(3)
def keep(size):
    seen[1] = size
"""
LARGE_ARRAY = """
import numpy as np
seen = np.zeros(1 << 16)
def keep(size):
    seen[1] = size
"""
DEQUE = """
import collections
seen = collections.deque(range(500), maxlen=500)
def keep(size):
    seen.append(size)
"""
COUNT = """
import itertools
numbers = itertools.count()
def keep(size):
    next(numbers)
"""
ITERATOR = """
numbers = iter([1, 2, 3])
def keep(size):
    next(numbers)
"""
GENERATOR = """
def made():
    yield 1
    yield 2
numbers = made()
def keep(size):
    next(numbers)
"""
NUMPY_GENERATOR = """
import numpy as np
draws = np.random.default_rng(0)
def keep(size):
    draws.random()
"""
NUMPY_STATE = """
import numpy as np
draws = np.random.RandomState(0)
def keep(size):
    draws.rand()
"""
PYTHON_RANDOM = """
import random
draws = random.Random(0)
def keep(size):
    draws.random()
"""
TORCH_GENERATOR = """
import torch
draws = torch.Generator().manual_seed(0)
def keep(size):
    torch.rand((), generator=draws)
"""
SLOTS = """
class Loss:
    __slots__ = ("seen",)
    def __init__(self):
        self.seen = 0
    def __call__(self, size):
        self.seen += size
keep = Loss()
"""
GLOBAL = """
seen = set()
def keep(size):
    seen.add(size)
"""


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(source, id=name)
        for name, source in {
            "callable": CALLABLE,
            "closure": CLOSURE,
            "attribute": ATTRIBUTE,
            "default": DEFAULT,
            "cached": CACHED,
            "global": GLOBAL,
            "array": ARRAY,
            "large-array": LARGE_ARRAY,
            "deque": DEQUE,
            "count": COUNT,
            "iterator": ITERATOR,
            "generator": GENERATOR,
            "numpy-generator": NUMPY_GENERATOR,
            "numpy-state": NUMPY_STATE,
            "python-random": PYTHON_RANDOM,
            "torch-generator": TORCH_GENERATOR,
            "slots": SLOTS,
        }.items()
    ],
)
def test_what_a_call_keeps_changes_the_fingerprint(source: str) -> None:
    owner = types.ModuleType("owner")
    exec(source, vars(owner))  # noqa: S102
    before = fingerprint.of_module(owner)
    assert fingerprint.of_module(owner) == before
    owner.keep(3)
    assert fingerprint.of_module(owner) != before


def test_call_that_keeps_nothing_leaves_the_fingerprint() -> None:
    owner = types.ModuleType("owner")
    source = "class Loss:\n    def __call__(self, size):\n        return size\n"
    exec(f"{source}\nkeep = Loss()\ndef plain(size):\n    return size\n", vars(owner))  # noqa: S102
    before = fingerprint.of_module(owner)
    assert (owner.keep(3), owner.plain(4)) == (3, 4)
    assert fingerprint.of_module(owner) == before


ANSWERS = """
import logging
from pathlib import Path
log = logging.getLogger(__name__ + ".told")
data = Path(__file__).parent / "data"
def ask(size):
    log.debug("%d of %s", size, hash(data))
    return data.name
def keep(size):
    global data
    data = data / str(size)
def tell(size):
    log.setLevel(size)
"""


def test_answers_that_an_object_keeps_leave_the_fingerprint() -> None:
    owner = types.ModuleType("owner")
    owner.__file__ = __file__
    exec(ANSWERS, vars(owner))  # noqa: S102
    before = fingerprint.of_module(owner)
    assert owner.ask(3) == "data"
    assert fingerprint.of_module(owner) == before
    owner.keep(3)
    after = fingerprint.of_module(owner)
    assert after != before
    owner.tell(7)
    assert fingerprint.of_module(owner) != after


UNREADABLE = """
import torch
class Irreps(tuple):
    def __len__(self):
        raise NotImplementedError
shapes = Irreps((1, 2))
plan = [torch.empty(3, device="meta")]
seen = []
def keep(size):
    seen.append(size)
"""


def test_what_cannot_be_looked_into_does_not_end_the_rank() -> None:
    owner = types.ModuleType("owner")
    exec(UNREADABLE, vars(owner))  # noqa: S102
    before = fingerprint.of_module(owner)
    assert fingerprint.of_module(owner) == before
    owner.keep(3)
    assert fingerprint.of_module(owner) != before
