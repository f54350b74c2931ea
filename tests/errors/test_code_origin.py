"""Whose code a file is, by where it lies."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import ddpcheck
from ddpcheck.errors import code_origin

OWN = Path(ddpcheck.__file__).parent
TORCH = Path(torch.__file__).parent
CONTAINER = "/usr/local/lib/python3.11/dist-packages"


@pytest.mark.parametrize(
    ("file", "torchs", "own"),
    [
        (f"{TORCH}/nn/parallel/distributed.py", "nn/parallel/distributed.py", ""),
        (f"{CONTAINER}/torch/nn/functional.py", "nn/functional.py", ""),
        ("/a/site-packages/torch/_tensor.py", "_tensor.py", ""),
        (f"{OWN}/run/steps.py", "", "run/steps.py"),
        ("/a/site-packages/ddpcheck/tree.py", "", "tree.py"),
        ("/a/site-packages/torchmetrics/metric.py", "", ""),
        ("/home/me/torch/distributed/train.py", "", ""),
        ("/home/me/ddpcheck/train.py", "", ""),
        ("/home/me/site-packages.py", "", ""),
    ],
)
def test_folder_of_a_package_decides(file: str, torchs: str, own: str) -> None:
    assert (code_origin.inside_torch(file), code_origin.inside_own(file)) == (
        torchs,
        own,
    )


@pytest.mark.parametrize(
    ("file", "is_users"),
    [
        ("/home/me/torch/train.py", True),
        ("/home/me/ddpcheck/train.py", True),
        ("/home/me/lib/python/train.py", True),
        (f"{OWN}/run/steps.py", False),
        (f"{TORCH}/_tensor.py", False),
        (f"{CONTAINER}/timm/models/resnet.py", False),
        ("/usr/lib/python3.11/json/decoder.py", False),
        ("/usr/lib64/python3.9/json/decoder.py", False),
        ("<frozen importlib._bootstrap>", False),
    ],
)
def test_what_is_neither_installed_nor_ours_is_the_users(
    file: str, *, is_users: bool
) -> None:
    assert code_origin.is_users(file) is is_users


def test_torch_that_was_built_from_source_is_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        code_origin, "_folder_of_torch", lambda: "/home/me/pytorch/torch/"
    )
    file = "/home/me/pytorch/torch/nn/functional.py"
    assert code_origin.inside_torch(file) == "nn/functional.py"
    assert code_origin.is_library(file)
    assert code_origin.is_users("/home/me/pytorch/tools/train.py")
