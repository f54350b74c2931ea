"""Only modules that the target names are imported for all ranks at once."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch.utils.checkpoint

from ddpcheck.ranks.server import preload
from ddpcheck.run.process import ahead, dynamo
from ddpcheck.target.target import TargetRef

_SYMBOLS = "torch.fx.experimental.symbolic_shapes"
_BACKENDS = "torch._dynamo.backends.common"
_COMPILED = "torch.distributed.tensor.experimental._attention"


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The imports ahead of time; "off" if torch._dynamo is delayed."""
    found: list[str] = []
    monkeypatch.setattr(importlib, "import_module", found.append)
    monkeypatch.setattr(dynamo, "put_off", lambda: found.append("off"))
    monkeypatch.setattr(dynamo, "can_wait", lambda: True)
    return found


def _prepare(monkeypatch: pytest.MonkeyPatch, path: str | None) -> None:
    result = SimpleNamespace(ref=TargetRef(path=path))
    monkeypatch.setattr(preload, "RESULT", result)
    ahead.prepare()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("model = torch.compile(model)", (dynamo.NAME, _BACKENDS)),
        ("model.compile(backend='eager')", (dynamo.NAME, _BACKENDS)),
        ("import torch._dynamo", (dynamo.NAME,)),
        ("model.gradient_checkpointing_enable()", (dynamo.NAME,)),
        ("torch.use_deterministic_algorithms(True)", (dynamo.NAME,)),
        ("torch._dynamo.config.compiled_autograd = True", (dynamo.NAME, _COMPILED)),
        ("from torch.distributions import Normal", (_SYMBOLS,)),
        ("loss.backward(torch.ones_like(loss))", (_SYMBOLS,)),
        ("grad(out, x, grad_outputs=ones)", (_SYMBOLS,)),
    ],
)
def test_module_that_the_file_speaks_of_is_imported(
    imports: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    line: str,
    expected: tuple[str, ...],
) -> None:
    path = tmp_path / "target.py"
    path.write_text(f"import torch\n{line}\n", encoding="utf-8")
    _prepare(monkeypatch, str(path))
    assert imports == [*expected, "off"]


def test_file_that_speaks_of_none_imports_none(
    imports: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "target.py"
    source = "loss.backward()  # precompiled\nre.compile('a')\n"
    path.write_text(source, encoding="utf-8")
    _prepare(monkeypatch, str(path))
    assert imports == ["off"]


@pytest.mark.parametrize("content", [None, b"\xff compile"])
def test_file_that_cannot_be_read_imports_none(
    imports: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    content: bytes | None,
) -> None:
    path = tmp_path / "target.py"
    if content is not None:
        path.write_bytes(content)
    _prepare(monkeypatch, str(path))
    assert imports == ["off"]


def test_target_without_a_file_imports_none(
    imports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _prepare(monkeypatch, None)
    monkeypatch.setattr(preload, "RESULT", None)
    ahead.prepare()
    assert imports == ["off", "off"]


@pytest.mark.parametrize("held", [torch.compile, torch.utils.checkpoint.checkpoint])
def test_library_that_checkpoints_or_compiles_needs_the_compiler(
    imports: list[str], monkeypatch: pytest.MonkeyPatch, held: object
) -> None:
    library = ModuleType("library")
    monkeypatch.setitem(sys.modules, "library", library)
    _prepare(monkeypatch, None)
    assert imports == ["off"]
    vars(library)["of_torch"] = held
    _prepare(monkeypatch, None)
    assert imports == ["off", dynamo.NAME, "off"]


def test_compiler_that_cannot_wait_is_imported(
    imports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamo, "can_wait", lambda: False)
    _prepare(monkeypatch, None)
    assert imports == [dynamo.NAME, "off"]


def test_module_that_a_torch_lacks_is_no_error(
    imports: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def lacks(name: str) -> None:
        imports.append(name)
        raise ModuleNotFoundError(name)

    path = tmp_path / "target.py"
    path.write_text("compile distributions", encoding="utf-8")
    monkeypatch.setattr(importlib, "import_module", lacks)
    _prepare(monkeypatch, str(path))
    assert imports == [dynamo.NAME, _SYMBOLS, "off"]


def test_modules_are_those_of_torch() -> None:
    for name in ahead._WORDS:  # noqa: SLF001
        assert importlib.util.find_spec(name) is not None, name
