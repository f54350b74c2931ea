"""The change of a user's file is the whole fix, and only where names allow it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ddpcheck.checking import checking
from ddpcheck.diagnose.fixed import patch
from ddpcheck.ranks.pool import Pool
from ddpcheck.report import output
from ddpcheck.run.session.session import Session
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef

SOURCE = '''\
"""A target."""
from __future__ import annotations

import torch
from torch import nn


def model():
    torch.manual_seed(0)
    return nn.Linear(4, 3)


batch = torch.ones(8, 4), torch.arange(8) % 3


def loss(output, target):
    return nn.functional.cross_entropy(output, target, reduction="sum")


if __name__ == "__main__":
    print(loss(model()(batch[0]), batch[1]))
'''
CODE = """\
def loss(output, target):
    if not dist.is_initialized():  # the single process
        return original.loss(output, target)
    return original.loss(output, target) * dist.get_world_size()
"""
IMPORTS = ("import torch", "import torch.distributed as dist")
OLD, NEW = "def loss", f"{CODE.replace('original.', 'original_')}\n\ndef original_loss"
CHANGED = SOURCE.replace(OLD, NEW).replace(
    "from torch import nn\n", "from torch import nn\nimport torch.distributed as dist\n"
)
OPTIMIZER = (
    "def optimizer(params):\n"
    "    made = getattr(original, 'optimizer', "
    "lambda p: torch.optim.SGD(p, lr=0.1))(params)\n"
    "    return made\n"
)


def test_change_renames_the_function_and_puts_the_new_one_before_it() -> None:
    assert patch.changed(SOURCE, CODE, IMPORTS) == CHANGED


def test_change_takes_an_import_of_several_names() -> None:
    lines = (*IMPORTS, "from torch import nn, optim")
    expected = CHANGED.replace("dist\n", "dist\nfrom torch import nn, optim\n", 1)
    assert patch.changed(SOURCE, CODE, lines) == expected


def test_change_renames_what_is_assigned() -> None:
    source = SOURCE.partition("def loss")[0] + "loss = nn.CrossEntropyLoss()\n"
    text = patch.changed(source, CODE, IMPORTS)
    assert "\n\n\noriginal_loss = nn.CrossEntropyLoss()\n" in text


def test_change_of_an_optimizer_that_the_file_lacks_is_the_usual_one() -> None:
    text = patch.changed(SOURCE, f"{CODE}\n\n{OPTIMIZER}", IMPORTS)
    assert "made = (lambda p: torch.optim.SGD(p, lr=0.1))(params)" in text
    own = SOURCE + "\ndef optimizer(params):\n    return torch.optim.Adam(params)\n"
    text = patch.changed(own, f"{CODE}\n\n{OPTIMIZER}", IMPORTS)
    assert "made = original_optimizer(params)" in text


@pytest.mark.parametrize(
    "source",
    [
        SOURCE + "criterion = loss\n",
        SOURCE.replace(
            "return nn.f", "if target is None:\n        loss(0, 0)\n    nn.f"
        ),
        SOURCE + "dist = 3\n",
        SOURCE + "def original_loss(): ...\n",
        SOURCE.replace("def loss", "from losses import loss\ndef other"),
        SOURCE + "for loss in (1, 2): ...\n",
        SOURCE.replace("\n", "\r\n"),
        "def loss(:\n",
    ],
    ids=[
        "used-elsewhere",
        "calls-itself",
        "name-of-an-import",
        "name-of-the-old-one",
        "imported",
        "bound-twice",
        "line-ends",
        "no-python",
    ],
)
def test_there_is_no_change_where_it_would_be_another_program(source: str) -> None:
    assert patch.changed(source, CODE, IMPORTS) == ""


def test_change_that_adds_functions_is_the_same_program() -> None:
    assert patch.is_certain(SOURCE, CODE)


@pytest.mark.parametrize(
    ("source", "code"),
    [
        (SOURCE, f"{CODE}\nCheckpoint.apply = loss\n"),
        (f"from torch.nn.functional import *\n{SOURCE}", CODE),
        (f"{SOURCE}\nnames = dir()\n", CODE),
        (f"import sys\n{SOURCE}\nown = sys.modules[__name__]\n", CODE),
    ],
    ids=["statement", "unknown-names", "reads-its-names", "reads-its-module"],
)
def test_change_that_other_code_may_see_has_to_run(source: str, code: str) -> None:
    assert not patch.is_certain(source, code)


@pytest.mark.usefixtures("no_script")
@pytest.mark.parametrize(("more", "runs"), [("", 1), ("names = dir()\n", 2)])
def test_change_runs_only_where_it_may_be_another_program(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str, runs: int
) -> None:
    path, ran = tmp_path / "target.py", []
    of_file = Session.of_file

    def noted(session: Session, text: str) -> Any:
        ran.append(text)
        return of_file(session, text)

    monkeypatch.setattr(Session, "of_file", noted)
    path.write_text(SOURCE + more, encoding="utf-8")
    options = Options(world_sizes=(2,), modes=("ddp",))
    report = checking.check(pool, TargetRef(path=str(path)), options)
    assert report.diff.startswith("--- a/target.py\n")
    assert len(ran) == runs


@pytest.mark.usefixtures("no_script")
def test_report_has_the_change_and_the_changed_file_is_equal(
    pool: Pool, tmp_path: Path
) -> None:
    path = tmp_path / "target.py"
    path.write_text(SOURCE, encoding="utf-8")
    options = Options(world_sizes=(2,), modes=("ddp",))
    report = checking.check(pool, TargetRef(path=str(path)), options)
    assert report.diff.startswith("--- a/target.py\n+++ b/target.py\n@@ ")
    assert "\n+def original_loss(output, target):\n     return" in report.diff
    assert "\n-" not in report.diff.replace("\n---", "")
    page = output.render(report, "html")
    assert "+def original_loss(" in page
    command = [shutil.which("git") or "git", "apply", "-"]
    subprocess.run(command, cwd=tmp_path, input=report.diff, text=True, check=True)
    again = checking.check(pool, TargetRef(path=str(path)), options)
    assert (again.verdict, again.diff) == ("equivalent", "")
