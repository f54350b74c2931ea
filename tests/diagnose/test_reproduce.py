"""reproduce.py shows the divergence, small, and no longer once it is mended."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddpcheck.compare import tolerance
from ddpcheck.diagnose import shrink
from ddpcheck.ranks.pool import Pool
from ddpcheck.run.session import assemble
from ddpcheck.run.session.session import Session
from ddpcheck.run.spec import RunSpec
from ddpcheck.target.target import TargetRef
from tests.diagnose.head import HEAD
from tests.diagnose.test_rules import checked, skip_where_too_new

DEEP = """
model = nn.Sequential(
    nn.Linear(4, 4), nn.Tanh(), nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
    nn.Linear(4, 3),
)
def loss(output, target):
    return nn.functional.cross_entropy(output, target, reduction="sum")
"""
NORM = """
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.BatchNorm1d(4), nn.Linear(4, 3))
"""
# One row on a rank makes one micro-batch, which is then divided by two: of two rows for
# two ranks the gradients are wrong whether labels are left out or not.
MICRO = """
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
batch = torch.randn(8, 4), torch.tensor([0, -100, 2, 1, 1, -100, -100, 0])
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    for x, y in zip(batch[0].chunk(2), batch[1].chunk(2)):
        fit = nn.functional.cross_entropy(model(x), y, reduction="sum")
        (fit / (y >= 0).sum().clamp(min=1) / 2).backward()
    optimizer.step()
"""
# Both scripts in one process: torch is imported once.
RUN_BOTH = """
import runpy, sys
import torch, torch._dynamo
torch.set_num_threads(1)
for path in sys.argv[1:]:
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        print("exit", end.code)
"""


NOT_A_NUMBER = """
batch = torch.randn(8, 4), torch.tensor([-100, -100, -100, -100, 0, 1, 2, 0])
model = nn.Linear(4, 3)
def loss(output, target):
    valid = (target >= 0).to(output.dtype)
    return (output.square().sum(1) * valid).sum() / valid.sum()
"""
COUNT = """
class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.register_buffer("rows", torch.zeros((), dtype=torch.long))
    def forward(self, x):
        self.rows += len(x)
        return super().forward(x)
model = Net()
loss = nn.functional.cross_entropy
"""
COMPLEX = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, dtype=torch.cfloat))
    def forward(self, x):
        return torch.view_as_real(x.to(self.weight.dtype) @ self.weight).sum(-1)
model = Net()
def loss(output, target):
    return nn.functional.cross_entropy(output, target, reduction="sum")
"""
UNEVEN = """
batch = torch.randn(3, 4), torch.tensor([0, 1, 2])
model = nn.Linear(4, 3)
loss = nn.functional.cross_entropy
"""
RAISES = """
import time, torch.distributed as dist
model = nn.Linear(4, 3)
def loss(output, target):
    if dist.is_initialized() and dist.get_rank() == 1:
        raise ValueError
    return nn.functional.cross_entropy(output, target)
"""

HANGS = """
import torch.distributed as dist
model = nn.Linear(4, 3)
STEP = []
def loss(output, target):
    STEP.append(0)
    if dist.is_initialized() and dist.get_rank() == 0 and len(STEP) == 3:
        dist.recv(torch.ones(1), 1)
    return nn.functional.cross_entropy(output, target)
"""


def test_script_is_minimal(pool: Pool, tmp_path: Path) -> None:
    script = checked(pool, tmp_path, HEAD + DEEP).reproduce
    assert "ROWS, WITHOUT = " in script
    assert re.search(r", 2, \('0', '1', '2'\)\nWORLD, STEPS, DTYPE", script)
    assert (
        "\nWORLD, STEPS, DTYPE, RTOL, DEADLINE_S = 2, 1, torch.float64, 1e-09, 60\n"
        in (script)
    )
    target = script[script.index("sys.path.insert") : script.index("strip = ")]
    assert len(script.splitlines()) - len(target.splitlines()) <= 60


@pytest.mark.slow
def test_module_that_diverges_stays(pool: Pool, tmp_path: Path) -> None:
    script = checked(pool, tmp_path, HEAD + NORM).reproduce
    assert re.search(r", \('0', '1'\)\nWORLD, STEPS, DTYPE", script)


def test_few_samples_show_the_cause_and_no_other(pool: Pool, tmp_path: Path) -> None:
    report = checked(pool, tmp_path, HEAD + MICRO)
    assert [f.slug for f in report.findings] == ["loss/accum-normalizer"]
    assert re.search(r", 4, \('0', '1'\)\nWORLD, STEPS, DTYPE", report.reproduce)


@pytest.mark.slow
def test_script_exits_1_until_the_target_is_mended(pool: Pool, tmp_path: Path) -> None:
    script = checked(pool, tmp_path, HEAD + DEEP).reproduce
    (tmp_path / "mended").mkdir()
    mended = (HEAD + DEEP).replace('reduction="sum"', 'reduction="mean"')
    path = tmp_path / "target.py"
    (tmp_path / "mended" / "target.py").write_text(mended, encoding="utf-8")
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    first.write_text(script, encoding="utf-8")
    other = script.replace(str(path), str(tmp_path / "mended" / "target.py"))
    assert other != script
    second.write_text(other, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", RUN_BOTH, str(first), str(second)],
        capture_output=True,
        text=True,
        check=False,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        cwd=tmp_path,
    )
    told = re.search(r"It measured (\S+) relative difference in (\S+)\.", script)
    assert told is not None, done.stderr
    # Not what gloo says of its connections in torch 2.9, two ranks at the same time.
    own = r"^(?:\S+ relative difference|exit) .*\n"
    stdout = "".join(re.findall(own, done.stdout, flags=re.MULTILINE))
    broken, _, sound = stdout.partition("exit 1\n")
    assert broken.startswith(f"{told[1]} relative difference  {told[2]}  "), done.stderr
    assert sound.endswith("exit 0\n")
    assert len(sound.splitlines()) == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "told"),
    [
        (NOT_A_NUMBER, "inf relative difference  "),
        (COUNT, r"0\.5 relative difference  rows  "),
        (COMPLEX, r"0\.5 relative difference  weight\.grad  "),
        (
            RAISES,
            "the ranks fail: rank 0 hangs in the step of this script; "
            r"rank 1 hangs at line \d+ of target\.py, in loss$",
        ),
    ],
    ids=["not-a-number", "count", "complex", "hang"],
)
def test_script_shows_every_kind_of_difference(
    pool: Pool, tmp_path: Path, source: str, told: str
) -> None:
    if source == COMPLEX:
        skip_where_too_new("complex-parameter")
    report = checked(pool, tmp_path, HEAD + source)
    assert (report.verdict, bool(report.reproduce)) == ("divergent", True)
    script, text = tmp_path / "script.py", report.reproduce
    assert ", DEADLINE_S = " in text
    if source == RAISES:
        # A check finds a hang at its deadline only, and so does the script at its own.
        hangs = source.replace("raise ValueError", "time.sleep(60)")
        (tmp_path / "target.py").write_text(HEAD + hangs, encoding="utf-8")
        text = text.replace(", 60\n", ", 2\n", 1)
    script.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    lines = [*done.stdout.splitlines(), done.stderr.strip().splitlines()[-1:]]
    assert any(re.match(told, str(line).strip("[]'")) for line in lines), lines
    assert done.returncode == 1


def test_script_of_ranks_that_hang_takes_seconds(pool: Pool, tmp_path: Path) -> None:
    script = checked(pool, tmp_path, HEAD + HANGS).reproduce
    found = re.search(r"DEADLINE_S = 2, \d, torch.float64, 1e-09, (\d+)\n", script)
    assert found is not None
    assert 5 <= int(found[1]) < 30
    path = tmp_path / "script.py"
    path.write_text(script.replace(f", {found[1]}\n", ", 2\n"), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    lines = (tmp_path / "target.py").read_text(encoding="utf-8").splitlines()
    number = lines.index("        dist.recv(torch.ones(1), 1)") + 1
    assert done.stderr.splitlines()[-1] == (
        f"the ranks fail: rank 0 hangs at line {number} of target.py, in loss; "
        "rank 1 hangs in the step of this script"
    )


def test_script_of_ranks_that_fail_says_how_and_waits_as_long_as_the_check(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "timeout_s", 96.5)
    script = checked(pool, tmp_path, HEAD + RAISES).reproduce
    told = r"\nThe ranks fail: .*rank 1 raised at step 1: ValueError\b.*\. Needs torch"
    assert re.search(told, script)
    assert "It measured" not in script
    assert ", 1e-09, 97\n" in script


def test_numbers_are_those_of_the_steps_that_the_script_makes(
    pool: Pool, tmp_path: Path
) -> None:
    script = checked(pool, tmp_path, HEAD + UNEVEN).reproduce
    assert ", None, ()\nWORLD, STEPS, DTYPE" in script
    assert "\nWORLD, STEPS, DTYPE, RTOL, DEADLINE_S = 2, 1, " in script
    assert re.search(r"It measured \S+ relative difference in \S+\.grad\.", script)


@pytest.mark.slow
def test_a_benign_finding_is_not_what_the_script_is_named_for(
    pool: Pool, tmp_path: Path
) -> None:
    source = DEEP.replace("nn.Tanh(), ", "nn.Tanh(), nn.Dropout(0.5), ", 1)
    report = checked(pool, tmp_path, HEAD + source)
    assert [(f.slug, f.benign) for f in report.findings] == [
        ("loss/sum-reduction", False),
        ("rng/stochastic-layer", True),
    ]
    assert report.findings[0].magnitude is report.findings[1].magnitude is None
    assert report.reproduce.startswith('"""target.py: loss/sum-reduction\n')


def test_script_is_shrunk_while_there_is_time(pool: Pool, tmp_path: Path) -> None:
    session = Session(pool, TargetRef(path=str(_written(tmp_path))))
    session.deadline = time.monotonic() - 1
    base = session.reference(RunSpec(mode="single", dtype="float64"))
    assert base.spec is not None
    outcomes = session.run([base.spec.but(mode="ddp", world_size=2)])
    limit = tolerance.default("float64")
    runs = [assemble.to_run(outcome, limit.rtol) for outcome in outcomes]
    known = shrink.divergent(session, outcomes, runs)
    assert known is not None
    late = shrink.smallest(session, known, limit, ["0", "1"])
    assert (late.spec.rows, late.spec.without) == (0, ())
    session.deadline = time.monotonic() + 600
    found = shrink.smallest(session, known, limit, ["0", "1"])
    assert (found.spec.rows, found.spec.without) == (2, ("0", "1"))


def _written(folder: Path) -> Path:
    path = folder / "deep.py"
    path.write_text(HEAD + DEEP, encoding="utf-8")
    return path
