"""fixed.py trains on ranks as the single process does, or there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ddpcheck.checking import checking
from ddpcheck.ranks.pool import Pool
from ddpcheck.report import output
from ddpcheck.report.data import Report
from ddpcheck.report.pages import pages
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef
from tests.diagnose.head import HEAD, STEP

pytestmark = pytest.mark.usefixtures("no_script")
ROUNDING = 1e-12
Differences = Callable[[Path], list[float]]
SUM = """
model = nn.Linear(4, 3)
def loss(output, target):
    return nn.functional.cross_entropy(output, target, reduction="sum")
"""
OWN_STEP = f"""
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
{STEP}
    fit = nn.functional.cross_entropy(model(x), y, reduction="sum")
    fit.backward()
    optimizer.step()
"""
OWN_WRAP = """
def wrap(model):
    return DDP(model, bucket_cap_mb=1)
"""
COUNTED = """
batch = torch.randn(8, 4), torch.tensor([0, -100, -100, 2, 1, -100, 0, 1])
model = nn.Linear(4, 3)
"""
COUNTED_TARGETS = """
batch = torch.randn(8, 4), {"y": torch.randn(8, 3), "on": torch.arange(8) < 3}
model = nn.Linear(4, 3)
def loss(output, target):
    each = (output - target["y"]).square().sum(1)
    return (each * target["on"]).sum() / target["on"].sum().clamp(min=1)
"""
COUNTED_INPUTS = """
labels = torch.tensor([0, -100, -100, 2, 1, -100, 0, 1])
batch = {"x": torch.randn(8, 4), "labels": labels}, torch.zeros(8)
class Net(nn.Linear):
    def forward(self, x, labels):
        return nn.functional.cross_entropy(super().forward(x), labels)
model = Net(4, 3)
def loss(output, target):
    return output
"""
COUNTED_STEP = f"""
batch = torch.randn(8, 4), torch.tensor([0, -100, -100, 2, 1, -100, 0, 1])
model = nn.Linear(4, 3)
{STEP}
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
PAIRED_STEP = f"""
batch = torch.randn(9, 4), torch.arange(9) % 3
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
{STEP}
    out = model(x)
    near = nn.functional.cross_entropy(out @ out.T, torch.arange(len(x)))
    (near + nn.functional.cross_entropy(out, y)).backward()
    optimizer.step()
"""
PIECES = f"""
batch = torch.randn(16, 4), torch.tensor([0, -100, -100, 2, 1, -100, 0, 1] * 2)
model = nn.Linear(4, 3)
{STEP}
    for piece, label in zip(x.split(6), y.split(6)):
        (nn.functional.cross_entropy(model(piece), label) / 3).backward()
    optimizer.step()
"""
COUPLED = """
import dataclasses
@dataclasses.dataclass
class Made:
    pair: tuple
    extra: dict
class Net(nn.Linear):
    def forward(self, x):
        made = super().forward(x)
        return Made(pair=(made, made.sum(1)), extra={"half": [made / 2]})
batch = torch.randn(9, 4), {"label": torch.arange(9) % 3}
model = Net(4, 3)
def loss(output, target):
    first, second = output.pair
    near = (first @ output.extra["half"][0].T).logsumexp(1).mean()
    return near + nn.functional.cross_entropy(first, target["label"]) + second.std()
"""
NORM = """
batch = torch.randn(9, 4, 5), torch.arange(9) % 3
model = nn.Sequential(nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(20, 3))
model.append(nn.BatchNorm1d(3, momentum=None, affine=False))
"""
REENTRANT = """
from torch.utils.checkpoint import checkpoint
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)
    def forward(self, x):
        x = x.requires_grad_()
        return self.second(checkpoint(self.first, x, use_reentrant=True))
model = Net()
def wrap(model):
    return DDP(model, find_unused_parameters=True)
"""
HIDDEN_OUTPUT = """
from torch.distributions import Independent, Normal
class Policy(nn.Linear):
    def forward(self, x):
        return Independent(Normal(super().forward(x), 1.0), 1)
model = Policy(4, 3)
def wrap(model):
    return DDP(model, find_unused_parameters=True)
def loss(output, target):
    return -output.log_prob(nn.functional.one_hot(target, 3)).mean()
"""
DATACLASS_OUTPUT = """
import dataclasses
@dataclasses.dataclass
class Output:
    logits: torch.Tensor
class Net(nn.Linear):
    def forward(self, x):
        return Output(super().forward(x))
model = Net(4, 3)
def wrap(model):
    return DDP(model, static_graph=True)
def loss(output, target):
    return nn.functional.cross_entropy(output.logits, target)
"""
RAGGED = """
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(9, 5), nn.Linear(5, 9)
    def forward(self, ids, lengths):
        return self.head(torch.tanh(self.words(ids[held(ids, lengths)])))
def held(ids, lengths):
    return torch.arange(ids.shape[1]) < lengths[:, None]
model = Words()
ids, lengths = torch.randint(0, 9, (8, 6)), torch.tensor([1, 5, 2, 3, 1, 2, 1, 1])
batch = (ids[:, :-1], lengths), (ids[:, 1:], lengths)
def loss(output, target):
    ids, lengths = target
    found = output.softmax(-1)
    right = nn.functional.one_hot(ids[held(ids, lengths)], 9).to(found.dtype)
    both, every = (found * right).sum(0), found.sum(0) + right.sum(0)
    return 1 - (2 * both / every).mean()
"""
VIEWS_STEP = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5))
    def forward(self, a, b):
        return nn.functional.normalize(self.body(torch.cat([a, b])), dim=1)
model = Net()
x = torch.randn(8, 4) * torch.linspace(0.5, 2, 8)[:, None]
batch = x + 0.3 * torch.randn(8, 4), x + 0.3 * torch.randn(8, 4)
def contrast(z):
    n = len(z) // 2
    scores = (2 * z @ z.T).masked_fill(torch.eye(2 * n, dtype=torch.bool), -1e9)
    return nn.functional.cross_entropy(scores, torch.arange(2 * n).roll(n))
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    z = model(*batch)
    contrast(torch.cat(dnn.all_gather(z)) if world() > 1 else z).backward()
    optimizer.step()
"""
LOSS_IN_FORWARD = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.ones(()))
    def forward(self, x, y):
        scores = self.net(x) * self.scale
        each = nn.functional.cross_entropy(scores, y, reduction="none")
        return each.topk(len(x) // 2).values.mean()
model = Net()
batch = (torch.randn(12, 4), torch.arange(12) % 3), torch.zeros(12)
def loss(output, target):
    return output
"""
SLOPE_STEP = f"""
batch = torch.randn(8, 4), torch.tensor([0, -100, -100, 2, 1, -100, 0, 1])
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
{STEP}
    x = x.clone().requires_grad_()
    out = model(x)
    (slope,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    fit = nn.functional.cross_entropy(out, y)
    (fit + (slope.square().sum(1).sqrt() - 1).square().mean()).backward()
    optimizer.step()
"""
ROUTED = """
class Routed(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(4, 3)
        self.experts = nn.ModuleList([nn.Linear(4, 3) for _ in range(3)])
    def forward(self, x):
        shares = self.router(x).softmax(1)
        mixed = torch.stack([e(x) for e in self.experts], 1) * shares[:, :, None]
        return mixed.sum(1), 3 * shares.mean(0).square().sum()
model = Routed()
batch = torch.randn(8, 4), torch.tensor([0, -100, 2, -100, 1, 2, 0, 1])
def loss(output, target):
    return nn.functional.cross_entropy(output[0], target) + 0.2 * output[1]
"""
LISTED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
    def forward(self, x):
        return [{"scores": self.net(row)} for row in x]
model = Net()
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, -100, 1, 2, -100, -100])
def loss(output, target):
    p = torch.stack([found["scores"] for found in output]).softmax(-1)[:, 0]
    y = (target == 0).to(p.dtype)
    return 1 - 2 * (p * y).sum() / (p.sum() + y.sum())
"""
SECOND_DIMENSION = """
batch = torch.randn(12, 4), torch.zeros(12)
class Net(nn.Linear):
    def forward(self, x):
        return super().forward(x).T
model = Net(4, 5)
def loss(output, target):
    return (output - output.mean(1, keepdim=True)).square().mean().log()
"""
OFFSET = """
batch = (torch.randn(9, 4), torch.randn(9, 4)), torch.zeros(9)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
    def forward(self, a, b):
        a, b = self.net(a), self.net(b)
        keys = b
        if dist.is_initialized():
            counts = [torch.zeros(1) for _ in range(world())]
            dist.all_gather(counts, torch.ones(1) * len(b))
            most = int(max(counts))
            padded = nn.functional.pad(b, (0, 0, 0, most - len(b)))
            parts = zip(dnn.all_gather(padded), counts)
            keys = torch.cat([part[: int(n)] for part, n in parts])
        each = nn.functional.cross_entropy(
            a @ keys.T, torch.arange(len(a)), reduction="sum"
        )
        return each * world() / 9
model = Net()
def loss(output, target):
    return output
"""
REDUCED = """
model = nn.Linear(4, 3)
def loss(output, target):
    centre = output.sum(0)
    if dist.is_initialized():
        dist.all_reduce(centre)
    spread = (centre / 8).square().sum()
    return nn.functional.cross_entropy(output, target) + spread
"""
CASES = {
    "norm": NORM,
    "ragged": RAGGED,
    "reentrant-checkpoint": REENTRANT,
    "router-beside-a-count": ROUTED,
    "samples-in-the-second-dimension": SECOND_DIMENSION,
    "slope-in-own-step": SLOPE_STEP,
    "reduced-without-gradient": REDUCED,
    "sum": SUM,
    "sum-in-own-step": OWN_STEP,
    "sum-in-own-step-and-wrap": OWN_STEP + OWN_WRAP,
    "views-in-own-step": VIEWS_STEP,
    "count": COUNTED,
    "count-in-a-dict": COUNTED_TARGETS,
    "count-in-inputs": COUNTED_INPUTS,
    "count-in-own-step": COUNTED_STEP,
    "coupled": COUPLED,
    "dataclass-output": DATACLASS_OUTPUT,
    "list-of-samples": LISTED,
    "loss-in-forward": LOSS_IN_FORWARD,
    "labels-of-own-rows": OFFSET,
    "object-as-output": HIDDEN_OUTPUT,
    "pairs-in-own-step": PAIRED_STEP,
    "pieces-in-own-step": PIECES,
}


def checked(
    pool: Pool, path: Path, *, fix: bool = True, sizes: tuple[int, ...] = (2,)
) -> Report:
    """Returns the report of a file."""
    options = Options(world_sizes=sizes, modes=("ddp",), fix=fix)
    return checking.check(pool, TargetRef(path=str(path)), options)


def written(folder: Path, source: str) -> Path:
    """Returns the path of a target whose folder has a space in its name."""
    path = folder / "my targets" / "target.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(source, encoding="utf-8")
    return path


# Of each kind of fix some pages, whose examples it mends.
PAGES = (
    "collective/backward-double-count",
    "collective/layout",
    "collective/no-autograd",
    "ddp/forward-bypassed",
    "ddp/frozen-after-wrap",
    "ddp/param-replaced-after-wrap",
    "ddp/process-group",
    "ddp/rank-local-weights",
    "ddp/unfrozen-after-wrap",
    "forward/batch-coupled",
    "graph/static-graph-violated",
    "loss/missing-world-scale",
    "loss/router-aux",
    "norm/running-stats-rank0",
    "sync/no-sync-off-by-one",
)


@pytest.mark.parametrize("source", CASES.values(), ids=CASES)
def test_fixed_file_trains_as_the_single_process(
    source: str, pool: Pool, tmp_path: Path, differences: Differences
) -> None:
    _trains_equally(pool, tmp_path, HEAD + source, differences)


@pytest.mark.slow
@pytest.mark.parametrize("slug", PAGES)
def test_fixed_file_of_a_page_trains_as_the_single_process(
    slug: str, pool: Pool, tmp_path: Path, differences: Differences
) -> None:
    _trains_equally(pool, tmp_path, pages.targets(slug)[0], differences)


def _trains_equally(
    pool: Pool, tmp_path: Path, source: str, differences: Differences
) -> None:
    path = written(tmp_path, source)
    report = checked(pool, path)
    proofs = {f.fix.proof for f in report.findings if f.fix and f.fix.verified}
    assert (report.verdict, proofs) == ("divergent", {"file"})
    fixed = tmp_path / "fixed.py"
    fixed.write_text(report.fixed, encoding="utf-8")
    again = checked(pool, fixed, sizes=(2, 4))
    assert (again.verdict, again.findings) == ("equivalent", ())
    assert "ddpcheck" not in report.fixed.partition("import")[2]
    assert max(differences(fixed)) < ROUNDING


def test_judge_sees_the_fault_that_the_file_mends(
    tmp_path: Path, differences: Differences
) -> None:
    assert min(differences(written(tmp_path, HEAD + SUM))) > ROUNDING


def test_file_that_does_not_mend_leaves_the_proof_as_it_was(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = "* 3.0", "A wrong factor."
    monkeypatch.setattr(
        "ddpcheck.diagnose.fixed.kinds.scales.factor_of", lambda *_: wrong
    )
    # The second draft, which gathers, would mend it.
    monkeypatch.setattr("ddpcheck.diagnose.fixed.check._MOST_DRAFTS", 1)
    report = checked(pool, written(tmp_path, HEAD + OWN_STEP))
    (finding,) = report.findings
    assert finding.fix is not None
    assert (finding.fix.proof, finding.fix.file) == ("intervention", None)
    assert report.fixed == ""
    assert output.write_report(report, tmp_path / "report")
    assert not (tmp_path / "report" / "fixed.py").exists()


def test_file_that_is_no_target_leaves_the_pool_free(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddpcheck.diagnose.fixed.draft._NAMES", "")  # no model
    for _ in range(2):  # the next check has the ranks of this one
        report = checked(pool, written(tmp_path, HEAD + SUM))
        assert (report.verdict, report.fixed) == ("divergent", "")


def test_no_file_is_written_without_fixes(pool: Pool, tmp_path: Path) -> None:
    assert checked(pool, written(tmp_path, HEAD + SUM), fix=False).fixed == ""


def test_file_of_the_user_stays(
    pool: Pool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = checked(pool, written(tmp_path, HEAD + SUM))
    own = tmp_path / "fixed.py"
    own.write_text("# mine\n", encoding="utf-8")
    output.write_report(report, tmp_path)
    assert own.read_text(encoding="utf-8") == "# mine\n"
    assert f"{own} is not ddpcheck's, so it stays" in capsys.readouterr().err
    own.unlink()
    output.write_report(report, tmp_path)
    assert own.read_text(encoding="utf-8") == report.fixed
