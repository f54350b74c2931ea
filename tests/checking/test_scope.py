"""What a verdict speaks of, and what it does not: from what the step was seen to do."""

from __future__ import annotations

import dataclasses
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from ddpcheck.checking import checking
from ddpcheck.ranks.pool import Pool
from ddpcheck.report import data as report
from ddpcheck.report import output
from ddpcheck.report.data import Report, Scope
from ddpcheck.report.render import sarif, terminal
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef
from tests.report.render import sample

HEAD = """
import torch
from torch import nn
def model():
    torch.manual_seed(0)
    return nn.Linear(4, 3)
def batch():
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    return x, torch.arange(8) % 3
loss = nn.functional.cross_entropy
"""
STEP = """
{before}
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    {body}
    loss(model(batch[0]), batch[1]).backward()
    optimizer.step()
    {after}
"""
SCHEDULED = """
made = {}
def optimizer(params):
    made["it"] = torch.optim.SGD(params, lr=0.1)
    made["schedule"] = torch.optim.lr_scheduler.ConstantLR(made["it"], 1.0)
    return made["it"]
"""
LOADED = "from torch.utils.data import DataLoader"
SAMPLED = "from torch.utils.data import DistributedSampler"
LEFT = ("data loader", "sampler", "AMP", "scheduler")


def _step(before: str = "", body: str = "", after: str = "") -> str:
    parts = {"body": body or "pass", "after": after or "pass"}
    return HEAD + STEP.format(before=before, **parts)


def _checked(pool: Pool, folder: Path, source: str) -> Report:
    path = folder / "mymodel.py"
    path.write_text(source, encoding="utf-8")
    options = Options(world_sizes=(2,), modes=("ddp",), fix=False)
    return checking.check(pool, TargetRef(path=str(path)), options)


def test_plain_target_has_model_loss_and_optimizer(pool: Pool, tmp_path: Path) -> None:
    made = _checked(pool, tmp_path, HEAD)
    assert made.scope == Scope(checked=("model", "loss", "SGD"), not_checked=LEFT)
    assert "single process, SGD, 3 steps" in output.render(made, "terminal")


@pytest.mark.parametrize(
    ("source", "found", "left"),
    [
        (
            _step(
                body="with torch.autocast('cpu', dtype=torch.bfloat16): model(batch[0])"
            ),
            ["AMP (autocast)"],
            ["data loader", "sampler", "scheduler"],
        ),
        (
            _step(
                before="scaler = torch.amp.GradScaler('cpu')",
                body="scaler.scale(loss(model(batch[0]), batch[1])).backward()\n"
                "    scaler.step(optimizer); scaler.update(); optimizer.zero_grad()",
            ),
            ["AMP (GradScaler)"],
            ["data loader", "sampler", "scheduler"],
        ),
        (
            _step(before=SCHEDULED, after="made['schedule'].step()"),
            ["scheduler"],
            ["data loader", "sampler", "AMP"],
        ),
        (
            _step(after="optimizer.param_groups[0]['lr'] *= 0.9"),
            ["scheduler"],
            ["data loader", "sampler", "AMP"],
        ),
        (
            _step(before=LOADED, body="list(DataLoader(list(batch[0])))"),
            ["data loader"],
            ["sampler", "AMP", "scheduler"],
        ),
        (
            _step(
                before=SAMPLED,
                body="torch.distributed.is_initialized() and "
                "DistributedSampler(batch[0])",
            ),
            ["sampler"],
            ["data loader", "AMP", "scheduler"],
        ),
    ],
    ids=["autocast", "scaler", "scheduler", "rate", "loader", "sampler"],
)
def test_what_the_step_has_is_checked(
    source: str, found: list[str], left: list[str], pool: Pool, tmp_path: Path
) -> None:
    scope = _checked(pool, tmp_path, source).scope
    assert [part for part in scope.checked if part.startswith((*LEFT, "AMP"))] == found
    assert list(scope.not_checked) == left


@pytest.mark.parametrize(
    "source",
    [
        _step(body="with torch.autocast('cpu', enabled=False): model(batch[0])"),
        _step(
            before="scaler = torch.amp.GradScaler('cpu', enabled=False)",
            body="scaler.scale(loss(model(batch[0]), batch[1])).backward()\n"
            "    scaler.step(optimizer); optimizer.zero_grad()",
        ),
        _step(before=SCHEDULED),
        HEAD.replace(
            "x = torch", "list(torch.utils.data.DataLoader([1]))\n    x = torch"
        ),
        _step(
            before="made = {}",
            body="made.setdefault('it', torch.optim.SGD(model.parameters(), lr=0.3))"
            "\n    loss(model(batch[0]), batch[1]).backward(); made['it'].step()"
            "\n    optimizer.zero_grad()",
        ),
    ],
    ids=["autocast-off", "scaler-off", "scheduler-at-rest", "batch", "two-rates"],
)
def test_what_the_step_does_not_use_is_not_checked(
    source: str, pool: Pool, tmp_path: Path
) -> None:
    assert _checked(pool, tmp_path, source).scope.not_checked == LEFT


def test_accumulating_step_names_the_origin_of_its_micro_batches(
    pool: Pool, tmp_path: Path
) -> None:
    source = _step(body="loss(model(batch[0]), batch[1]).backward()")
    made = _checked(pool, tmp_path, source)
    assert made.scope.checked == (
        "model",
        "train_step",
        "SGD",
        "accumulation (2 backwards an update)",
    )
    text = " ".join(output.render(made, "terminal").split())
    assert (
        "reference: single process, 2 backward passes per update as in the step, "
        "SGD, 3 "
        "steps; " in text
    )
    assert "scope: model, train_step, SGD, accumulation; not data" in text


SCOPE = Scope(checked=("model", "loss", "SGD"), not_checked=LEFT)
SAID = "model, loss, SGD; not data loader, sampler, AMP, scheduler"


@pytest.mark.parametrize("form", ["terminal", "html", "github-summary", "junit"])
def test_every_form_shows_the_scope(form: str) -> None:
    from ddpcheck.report.render import github  # noqa: PLC0415 (of one form)

    made = dataclasses.replace(sample.divergent(), scope=SCOPE)
    if form == "github-summary":
        assert SAID.replace(";", "&#59;") in github.to_summary(made)
    elif form == "junit":
        suite = ET.fromstring(output.render(made, form)).find("testsuite")
        assert suite is not None
        found = suite.find("properties/property[@name='scope']")
        assert found is not None
        assert found.get("value") == SAID
    else:
        assert SAID in output.render(made, form)


def test_machines_read_the_scope() -> None:
    made = dataclasses.replace(sample.equivalent(), scope=SCOPE)
    plain = json.loads(report.to_json(made))
    assert plain["scope"] == {
        "checked": ["model", "loss", "SGD"],
        "not_checked": [*LEFT],
    }
    (run,) = json.loads(sarif.to_sarif(made, pages={}))["runs"]
    assert run["properties"] == {"scope": SAID}
    assert report.from_json(report.to_json(made)) == made


def test_report_of_an_earlier_version_has_no_scope() -> None:
    plain = json.loads(report.to_json(sample.equivalent()))
    del plain["scope"], plain["target"]["backwards"]
    old = report.from_json(json.dumps(plain))
    assert (old.scope, old.target.backwards) == (Scope(), 1)
    assert "scope" not in output.render(old, "terminal")


def test_scope_is_one_line_of_a_terminal() -> None:
    long = Scope(checked=("model", "train_step", "x" * 60, "wrap"), not_checked=LEFT)
    made = dataclasses.replace(sample.divergent(), scope=long)
    lines = terminal.to_text(made, color=False, width=80).splitlines()
    (shown,) = [line for line in lines if line.startswith("  scope: ")]
    assert len(shown) <= 80
    assert shown.endswith(" ...")
    whole = terminal.to_text(made, color=False, width=80, verbose=True)
    assert "AMP, scheduler" in whole
