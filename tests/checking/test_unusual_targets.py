"""Targets out of the common that are right, or wrong where one could overlook it."""

from __future__ import annotations

import importlib
import inspect
import textwrap
from pathlib import Path

import pytest

from ddpcheck.checking import checking
from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks.pool import Pool
from ddpcheck.report.data import Report
from ddpcheck.report.pages import pages
from ddpcheck.run.session.session import CannotCheckError
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef
from tests.corpus import programs
from tests.diagnose.head import HEAD

pytestmark = pytest.mark.corpus


def check(
    pool: Pool, folder: Path, source: str, modes: tuple[str, ...] = ("ddp",)
) -> Report:
    """Returns the report of a target at world size 2."""
    path = folder / "target.py"
    path.write_text(HEAD + source, encoding="utf-8")
    options = Options(world_sizes=(2,), modes=modes, fix=False)
    return checking.check(pool, TargetRef(path=str(path)), options)


EIGHT_NUMBERS = (
    "inputs.1: a list of 8 numbers, as many as samples, and every rank has all of it; "
    "if each sample has one, make it a tensor, which is cut into shards"
)
_PAGE = pages.page("target-optimizer-closure")
OF_CLOSURE = textwrap.dedent(
    _PAGE[_PAGE.index("    def ") : _PAGE.index("The gradients of")]
)
# Source, what is warned of, what is not compared.
RIGHT: dict[str, tuple[str, list[str], list[str]]] = {
    # A table that is filled for evaluation alone: until then it is whatever was there.
    "memory-that-nothing-initialises": (
        """
import math, os
def model():
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    garbage = torch.full((5,), float(os.getpid()))
    garbage[2] = math.nan
    net.table = nn.Parameter(garbage, requires_grad=False)
    return net
""",
        [],
        [],
    ),
    # The closure computes gradients after the step began.
    "optimizer-that-calls-a-closure": (
        """
model = nn.Linear(4, 3)
optimizer = lambda params: torch.optim.LBFGS(params, max_iter=2)
def train_step(model, optimizer, batch):
    def closure():
        optimizer.zero_grad()
        value = loss(model(batch[0]), batch[1])
        value.backward()
        return value
    optimizer.step(closure)
""",
        [],
        [],
    ),
    # With several calls of it in each step, as its page says.
    "optimizer-that-searches-along-a-line": (
        """
model = nn.Linear(4, 3)
def optimizer(params):
    return torch.optim.LBFGS(params, line_search_fn="strong_wolfe")
"""
        + OF_CLOSURE,
        [],
        [],
    ),
    # DDP waits for the parameters of what it wraps.
    "optimizer-of-another-model": (
        """
model, other = nn.Linear(4, 3), nn.Linear(4, 3)
other_optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss(model(batch[0]), batch[1]).backward()
    optimizer.step()
""",
        [],
        ["gradients of other_optimizer[0], other_optimizer[1]"],
    ),
    "two-optimizers-in-turn": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.g, self.d = nn.Linear(4, 4), nn.Linear(4, 3)
    def forward(self, x, ends):
        y = self.g(x)
        return self.d(y.detach() if ends else y)
model = Net()
def train_step(model, optimizer, batch):
    inner = getattr(model, "module", model)
    for ends, part in ((True, inner.d), (False, inner.g)):
        own = torch.optim.SGD(part.parameters(), lr=0.1)
        inner.zero_grad()
        loss(model(batch[0], ends), batch[1]).backward()
        own.step()
""",
        [
            "2 parameters get no gradient in one of the updates (g.weight, g.bias): "
            "DDP was built with find_unused_parameters=True; without it the second "
            "step raises"
        ],
        [],
    ),
    # A worker of a fresh interpreter would not know the target's classes.
    "loader-with-workers": (
        """
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return torch.full((4,), float(i)), i % 3
model = nn.Linear(4, 3)
def batch():
    loader = torch.utils.data.DataLoader(Rows(), batch_size=8, num_workers=2)
    return next(iter(loader))
""",
        [],
        [],
    ),
    "user-dict-as-inputs": (
        """
from collections import UserDict
class Net(nn.Linear):
    def forward(self, x, weight):
        return super().forward(x * weight)
model = Net(4, 3)
batch = UserDict(x=batch[0], weight=torch.rand(8, 1)), batch[1]
""",
        [],
        [],
    ),
    # torch sends a complex buffer as pairs of real numbers.
    "complex-rotations": (
        """
class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.register_buffer("turn", torch.polar(torch.ones(3), torch.arange(3.0)))
    def forward(self, x):
        return (super().forward(x) * self.turn).real
model = Net()
""",
        [],
        [],
    ),
    "sparse-gradients": (programs.source("sound/sparse-embedding"), [], []),
    # As torchrun sets it, before the file is read.
    "world-size-kept-at-import": (
        """
import os
WORLD = int(os.getenv("WORLD_SIZE", "1"))
RANK = int(os.environ["RANK"]) if "RANK" in os.environ else 0
model = nn.Linear(4, 3)
def loss(output, target):
    total = nn.functional.cross_entropy(output, target, reduction="sum")
    assert RANK == rank()
    return WORLD * total / 8
""",
        [],
        [],
    ),
    # What was refused has counted a step; the generator has drawn.
    "refuses-float64-after-it-has-counted": (
        """
COUNT, DRAWS = [0], torch.Generator().manual_seed(0)
class Net(nn.Linear):
    def forward(self, x):
        if x.dtype == torch.float64:
            raise TypeError("float32 only")
        return super().forward(x)
def train_step(model, optimizer, batch):
    COUNT[0] += 1
    weight = 1 + torch.rand((), generator=DRAWS) / COUNT[0]
    optimizer.zero_grad()
    (weight * loss(model(batch[0]), batch[1])).backward()
    optimizer.step()
model = Net(4, 3)
""",
        ["the model refuses float64, so it ran in float32: TypeError: float32 only"],
        [],
    ),
    # On ranks the optimizer hands the gradients on to another one.
    "optimizer-inside-an-optimizer": (
        """
from torch.distributed.optim import ZeroRedundancyOptimizer as Zero
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
def optimizer(params):
    if dist.is_initialized():
        return Zero(params, torch.optim.Adam, lr=0.01)
    return torch.optim.Adam(params, lr=0.01)
""",
        [],
        [],
    ),
    **{
        f"sparse-inputs-{layout}": (
            f"""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3))
    def forward(self, x):
        return torch.sparse.mm(x, self.weight)
model = Net()
import warnings
warnings.simplefilter("ignore")
batch = batch[0].clamp(min=0).{convert}, batch[1]
""",
            [],
            ["dp at world size 2"],
        )
        for layout, convert in [("coo", "to_sparse()"), ("csr", "to_sparse_csr()")]
    },
    # As of attention: numbers that no sum can hold.
    "mask-of-infinities-as-input": (
        """
class Net(nn.Linear):
    def forward(self, x, mask):
        return super().forward((x + mask).softmax(1))
model = Net(4, 3)
mask = torch.zeros(8, 4)
mask[::2, 2:] = float("-inf")
mask[1::2, 3] = torch.finfo(torch.float32).min
batch = (batch[0], mask), batch[1]
""",
        [],
        [],
    ),
    # Lists that happen to be as long as the batch, and are none of its samples.
    "lists-of-eight-things": (
        """
class Net(nn.Linear):
    def forward(self, x, strides, cache):
        return super().forward(x) * len(strides) / len(cache)
model = Net(4, 3)
batch = (torch.randn(8, 4), [1, 2, 4, 8, 8, 8, 8, 8], [None] * 8), torch.arange(8) % 3
""",
        [EIGHT_NUMBERS],
        [],
    ),
    # In float32 inside, so that it is judged by what a permuted batch changes.
    "batches-that-grow": (
        """
class Half(nn.Linear):
    def forward(self, x):
        return (x.float() @ self.weight.float().t()).double() + self.bias
model = Half(4, 3)
def batch(step):
    size = 8 + 8 * step
    return torch.randn(size, 4), torch.arange(size) % 3
""",
        [],
        [],
    ),
}


# Before that torch gives replicas the pairs, and its DDP cannot send complex buffers.
SENDS_COMPLEX = "view_as_complex" in inspect.getsource(
    importlib.import_module("torch.nn.parallel.replicate")
)


@pytest.mark.parametrize("name", list(RIGHT))
def test_right_target_is_equivalent(name: str, pool: Pool, tmp_path: Path) -> None:
    if name == "complex-rotations" and not SENDS_COMPLEX:
        pytest.skip("DataParallel of this torch has no complex buffers")
    source, warnings, not_compared = RIGHT[name]
    report = check(pool, tmp_path, source, ("dp", "ddp"))
    scattered = "equivalent" if "sparse-inputs" not in name else "not-checked"
    assert [run.verdict for run in report.runs] == [scattered, "equivalent"]
    assert report.verdict == "equivalent"
    assert list(report.warnings) == warnings
    assert [n.what for n in report.not_compared] == not_compared


# Source, the quantities that differ.
WRONG = {
    # Each rank trains a center of its own, which no wrapper knows.
    "optimizer-of-a-plain-tensor": (
        """
CENTERS = []
class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.center = torch.zeros(3, requires_grad=True)
        CENTERS[:] = [self.center]
def model():
    torch.manual_seed(0)
    return Net()
def optimizer(params):
    return torch.optim.SGD([*params, *CENTERS], lr=0.1)
def train_step(model, optimizer, batch):
    inner = getattr(model, "module", model)
    optimizer.zero_grad()
    far = (inner.center - batch[0][:, :3].mean(0)).square().sum()
    (loss(model(batch[0]), batch[1]) + far).backward()
    optimizer.step()
""",
        {"gradients", "weights"},
    ),
    # A mask that is no number's size hides no difference of a weight.
    "weights-beside-an-infinite-mask": (
        """
class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.mask = nn.Parameter(torch.tensor(-torch.inf), requires_grad=False)
        self.center = nn.Parameter(torch.zeros(3), requires_grad=False)
    def forward(self, x):
        self.center.data.add_(1e-3 * x[:, :3].mean(0))
        return super().forward(x)
model = Net()
""",
        {"weights"},
    ),
    "counter-of-large-numbers": (
        """
class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.register_buffer("seen", torch.tensor(2**50))
    def forward(self, x):
        self.seen += len(x)
        return super().forward(x)
model = Net()
""",
        {"buffers"},
    ),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_wrong_target_is_divergent(name: str, pool: Pool, tmp_path: Path) -> None:
    source, differing = WRONG[name]
    report = check(pool, tmp_path, source)
    assert report.verdict == "divergent"
    run = report.runs[0]
    found = {
        name: getattr(run, name).mismatched
        for name in ("gradients", "weights", "buffers", "outputs")
    }
    assert {name for name, count in found.items() if count} == differing


NOT_FINITE = """
model = nn.Linear(4, 3)
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    output = model(batch[0])
    (loss(output, batch[1]) + (0 * output).square().sum().sqrt()).backward()
    optimizer.step()
"""


def test_gradients_that_are_no_numbers_are_no_training(
    pool: Pool, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        check(pool, tmp_path, NOT_FINITE)
    assert caught.value.problem.slug == "target-not-finite"
    assert caught.value.problem.found == (
        "gradients at step 1, weights at step 1, gradients at step 2"
    )


# A row per sample: each rank keeps those of its own.
MEMBRANE = """
class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("mem", torch.zeros(0))
    def forward(self, x):
        self.mem = torch.zeros(len(x), 3, dtype=x.dtype)
        for _ in range(3):
            self.mem = 0.8 * self.mem + self.linear(x) + DRIFT
        return self.mem
model = Leaky()
"""


@pytest.mark.parametrize(
    ("drift", "verdict"), [("0", "equivalent"), ("rank()", "divergent")]
)
def test_buffer_with_a_row_per_sample_is_compared_by_rows(
    drift: str, verdict: str, pool: Pool, tmp_path: Path
) -> None:
    report = check(pool, tmp_path, MEMBRANE.replace("DRIFT", drift))
    (run,) = report.runs
    assert (report.verdict, run.buffers.compared) == (verdict, 3)
    assert bool(run.buffers.mismatched) == (verdict == "divergent")


def test_rank_without_room_on_its_gpu_is_not_checked(
    pool: Pool, tmp_path: Path
) -> None:
    source = """
model = nn.Linear(4, 3)
def train_step(model, optimizer, batch):
    if rank() == 1:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    loss(model(batch[0]), batch[1]).backward()
    optimizer.step()
"""
    report = check(pool, tmp_path, source)
    assert (report.verdict, report.exit_code) == ("not-checked", 3)
    assert report.runs[0].why == (
        "rank 1 found no room on its GPU: OutOfMemoryError: CUDA out of memory. Tried "
        "to allocate 2 GiB"
    )


def test_rank_on_which_ddpcheck_fails_is_not_checked(
    pool: Pool, tmp_path: Path
) -> None:
    # No rows can be taken of blocks of four rows that hold one each.
    source = """
class Net(nn.Linear):
    def forward(self, x):
        return super().forward(x.to_dense())
model = Net(4, 3)
import warnings
warnings.simplefilter("ignore")
batch = torch.eye(8, 4).to_sparse_bsr((8, 4)), batch[1]
"""
    report = check(pool, tmp_path, source)
    assert (report.verdict, report.exit_code) == ("not-checked", 3)
    assert report.findings == ()
    (run,) = report.runs
    assert run.why.startswith("ddpcheck itself failed on rank 0, not the target: ")
    assert run.why.partition("(tree.py:")[2].endswith(" in rows_of)")


def test_list_as_long_as_the_batch_leaves_it_open_what_couples_samples(
    pool: Pool, tmp_path: Path
) -> None:
    source = """
class Net(nn.Linear):
    def forward(self, x, strides):
        x = super().forward(x) * len(strides)
        return x - x.mean(0) * strides[7]
model = Net(4, 3)
batch = (torch.randn(8, 4), [1, 2, 4, 8, 8, 8, 8, 8]), torch.arange(8) % 3
"""
    report = check(pool, tmp_path, source)
    assert report.verdict == "divergent"
    assert [f.slug for f in report.findings] == ["unknown"]
    assert EIGHT_NUMBERS in report.warnings


DEAD = """
model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
nn.init.constant_(model[0].bias, -50.0)
def loss(output, target):
    return output.sum()
"""


def test_gradients_that_are_all_zero_show_nothing(pool: Pool, tmp_path: Path) -> None:
    decay = "def optimizer(p):\n    return torch.optim.SGD(p, 0.1, weight_decay=0.1)\n"
    for number, source in enumerate([DEAD, DEAD + decay]):
        folder = tmp_path / str(number)
        folder.mkdir()
        report = check(pool, folder, source)
        assert (report.verdict, report.exit_code) == ("not-checked", 3)
        (run,) = report.runs
        assert run.why == "all gradients of the single-process run are 0 in 3 steps"


def test_weights_at_rest_are_warned_of(pool: Pool, tmp_path: Path) -> None:
    source = """
model = nn.Linear(4, 3)
def optimizer(params):
    return torch.optim.SGD(params, lr=0.0)
"""
    report = check(pool, tmp_path, source)
    assert (report.verdict, report.warnings) == (
        "equivalent",
        (
            "no weight changes in 3 steps of the single-process run: gradients are "
            "compared, but no optimizer update is",
        ),
    )


def test_batch_that_a_rank_is_given_as_a_rank_is_none_without_a_seed(
    pool: Pool, tmp_path: Path
) -> None:
    source = """
model = nn.Linear(4, 3)
whole = batch
def batch():
    return whole[0] * (1 + world()), whole[1]
"""
    assert check(pool, tmp_path, source).verdict == "divergent"


@pytest.mark.parametrize(
    ("error", "slug", "fix"),
    [
        (
            'RuntimeError("Cannot re-initialize CUDA in forked subprocess.")',
            "target-starts-cuda",
            "make these tensors in model() or batch(), on the CPU; --device cuda moves "
            "them",
        ),
        (
            'RuntimeError("Expected all tensors to be on the same device, but found")',
            "target-raises",
            "make constants where they are used: torch.arange(n, device=x.device)",
        ),
        (
            'torch.OutOfMemoryError("CUDA out of memory.")',
            "target-raises",
            "a smaller batch or model, --dtype float32, or a larger GPU",
        ),
    ],
    ids=["in-a-fork", "two-devices", "full"],
)
def test_what_gpus_refuse_comes_with_its_fix(
    error: str, slug: str, fix: str, pool: Pool, tmp_path: Path
) -> None:
    source = f"""
model = nn.Linear(4, 3)
def loss(output, target):
    raise {error}
"""
    with pytest.raises(UsageError) as caught:
        check(pool, tmp_path, source)
    assert (caught.value.problem.slug, caught.value.problem.fix) == (slug, fix)


LOCAL_SGD = """
wrap = lambda model: model
model = nn.Linear(4, 3)
updates = []
optimizer = lambda params: torch.optim.SGD(params, lr=LR, weight_decay=0.01)
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss(model(batch[0]), batch[1]).backward()
    optimizer.step()
    updates.append(1)
    if dist.is_initialized() and len(updates) % PERIOD == 0:
        for p in model.parameters():
            dist.all_reduce(p.data)
            p.data /= world()
"""


def test_weights_that_ranks_share_after_their_own_steps(
    pool: Pool, tmp_path: Path
) -> None:
    source = LOCAL_SGD.replace("LR", "0.1")
    report = check(pool, tmp_path, source.replace("PERIOD", "1"))
    assert (report.verdict, report.runs[0].gradients.compared) == ("equivalent", 0)
    assert report.runs[0].weights.compared == 6
    assert {n.what: n.why for n in report.not_compared}[
        "gradients of ddp at world size 2"
    ] == (
        "each rank's own when the optimizer steps; the ranks share their weights after "
        "it, and these equal the single-process weights after every step"
    )
    # Elsewhere: of one size and second, Python would take it for the file before.
    other = tmp_path / "other"
    other.mkdir()
    report = check(pool, other, source.replace("PERIOD", "2"))
    assert report.verdict == "divergent"


SERVER = """
model = nn.Linear(4, 3)
def wrap(model):
    return nn.Sequential(model)
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    if dist.is_initialized():
        for p in model.parameters():
            p.grad /= dist.get_world_size()
            dist.reduce(p.grad, 0)
    optimizer.step()
    if dist.is_initialized() and SENDS:
        for p in model.parameters():
            dist.broadcast(p.data, 0)
"""


@pytest.mark.parametrize("sends", [True, False])
def test_weights_that_ranks_take_from_the_first(
    pool: Pool, tmp_path: Path, *, sends: bool
) -> None:
    report = check(pool, tmp_path, SERVER.replace("SENDS", str(sends)))
    assert report.verdict == ("equivalent" if sends else "divergent")
    assert report.runs[0].weights.compared == 6


def test_weights_that_hardly_move_prove_nothing(pool: Pool, tmp_path: Path) -> None:
    source = LOCAL_SGD.replace("LR", "1e-13").replace("PERIOD", "1")
    report = check(pool, tmp_path, source)
    assert report.runs[0].weights.mismatched == 0
    assert report.verdict == "divergent"


@pytest.mark.parametrize(
    ("argument", "code"),
    [("3", "3"), ("", ""), ("'enough'", "'enough'")],
    ids=["code", "none", "text"],
)
def test_exit_in_a_model_is_reported_with_its_line(
    pool: Pool, tmp_path: Path, argument: str, code: str
) -> None:
    source = f"import sys\ndef model():\n    sys.exit({argument})\n"
    with pytest.raises(CannotCheckError, match=r"^sys\.exit\(") as caught:
        check(pool, tmp_path, HEAD + source)
    assert str(caught.value).startswith(f"sys.exit({code}) was called at target.py:")
