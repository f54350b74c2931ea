"""Imports that training probably needs, done once in the fork server for all ranks.

torch imports parts of itself lazily, and each rank would import them again. What the
target has imported, or names in its file, is imported before the fork.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from pathlib import Path

import torch.utils.checkpoint

from ddpcheck.ranks.server import preload
from ddpcheck.run.process import dynamo

_SYMBOLS = "torch.fx.experimental.symbolic_shapes"
_BACKENDS = "torch._dynamo.backends.common"  # needed by every backend of the compiler
_COMPILED = "torch.distributed.tensor.experimental._attention"
# Patterns of source code that needs a module. A false match costs one import.
_WORDS = {
    dynamo.NAME: (
        r"(?<!re\.)\bcompile\b|_dynamo|checkpoint|deterministic|profiler"
        r"|functorch|torch\.func\b"
    ),
    _BACKENDS: r"(?<!re)\.compile\b",
    _COMPILED: r"compiled_autograd",
    _SYMBOLS: (
        r"distributions|broadcast_shapes|grad_outputs|grad_tensors|autograd\.backward"
        r"|\.backward\([^)]"
    ),
}
# Libraries that checkpoint or compile refer to one of these, as do torch's modules.
_NEED_DYNAMO = (
    torch.compile,
    torch.utils.checkpoint,
    torch.utils.checkpoint.checkpoint,
    torch.utils.checkpoint.checkpoint_sequential,
)


def prepare() -> None:
    """Imports what training probably needs; installs a stand-in for the compiler."""
    source = _source()
    needed = {module for module, words in _WORDS.items() if re.search(words, source)}
    if not dynamo.can_wait() or _is_held():
        needed.add(dynamo.NAME)
    for module in sorted(needed):
        with contextlib.suppress(ImportError):  # other versions of torch lack some
            importlib.import_module(module)
    dynamo.put_off()


def _source() -> str:
    ref = getattr(preload.RESULT, "ref", None)
    if ref is None or ref.path is None:
        return ""
    try:
        return Path(ref.path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _is_held() -> bool:
    """Returns whether a module outside torch refers to what needs torch._dynamo."""
    wanted = {id(each) for each in _NEED_DYNAMO}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("torch", "ddpcheck", "torchgen"):
            continue
        values = list(getattr(module, "__dict__", {}).values())
        if any(id(value) in wanted for value in values):
            return True
    return False
