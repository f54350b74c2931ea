"""Makes a `Target` of the user's file: finds the names, and reports errors.

This module runs in child processes (user code never runs in the tool's own) and
imports no torch at its top, so that `TargetRef` can be made without it.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib
import inspect
import sys
import types
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddpcheck.errors.problem import UsageError, cut, usage_error
from ddpcheck.target import importing, options, scripts, shipping
from ddpcheck.target import settings as settings_module
from ddpcheck.target.options import DEFINITIONS

NAMES = tuple(DEFINITIONS)
SETTINGS = tuple(one.name for one in options.SETTINGS if "target" in one.places)

_SIGNATURES = {
    "model": "def model() -> torch.nn.Module, or an nn.Module",
    "batch": "def batch() -> (inputs, targets), the global batch",
    "collate": "def collate(samples) -> (inputs, targets)",
    "loss": "def loss(output, target) -> scalar tensor",
    "optimizer": "def optimizer(params) -> torch.optim.Optimizer",
    "wrap": "def wrap(model) -> the module that a rank trains",
    "train_step": "def train_step(model, optimizer, batch)",
}

# What other training code calls these; suggested where the contract's name is missing.
_ALIASES = {
    "model": ("Model", "Net", "net", "build_model", "make_model", "get_model"),
    "batch": ("get_batch", "make_batch", "batch_fn", "data", "get_data"),
    "loss": ("criterion", "loss_fn", "loss_function", "loss_func", "compute_loss"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRef:
    """Where a target comes from; plain, so that it can be sent to ranks.

    One of `path` (a file) and `factory` ("module:function", called with `arguments`)
    is set. `names` maps the contract's names to the file's ("model": "Net").
    `is_plain`: functions of torch.distributed that its files import stay as they are.
    `source`: the file that defines what a factory returns, by `names`, if one does.
    """

    path: str | None = None
    names: tuple[tuple[str, str], ...] = ()
    factory: str | None = None
    arguments: tuple[tuple[str, Any], ...] = ()
    is_script: bool = False  # which is in `path`, and which the factory makes it of
    is_plain: bool = False
    source: str | None = None
    module: str = ""  # of a script that is run as `python -m` runs one

    @property
    def name(self) -> str:
        """The name for messages: "train.py", "package.train"."""
        return Path(self.path or "").name or self.module or self.factory or "target"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A model, its batch, its loss, and how it is trained: what a file defines."""

    name: str
    model: Any
    batch: Any
    collate: Callable[..., Any] | None = None
    loss: Callable[..., Any] | None = None
    optimizer: Callable[..., Any] | None = None
    wrap: Callable[..., Any] | None = None
    train_step: Callable[..., Any] | None = None
    path: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    is_script: bool = False  # its hooks run a training script, which does all by itself
    places: dict[str, str] = field(default_factory=dict)  # lines of a script by key
    split: int = 1  # batches of a single process for one of a rank, in a script's step

    def build(self) -> Any:
        """Returns a new model (an instance is copied).

        Raises:
            UsageError: target-model-kind.
        """
        from torch import nn  # noqa: PLC0415

        if isinstance(self.model, nn.Module):
            return copy.deepcopy(self.model)
        _check_no_arguments(self)
        made = self.model()
        if not isinstance(made, nn.Module):
            raise usage_error(
                slug="target-model-kind",
                message=f"{self.name}: model() did not return a torch.nn.Module",
                expected=_SIGNATURES["model"],
                found=_kind(made),
                fix="return the module from model()",
            )
        return made

    def batch_at(self, step: int) -> Any:
        """Returns the global batch of this step (0, 1, ...).

        Of a list of samples that is what `collate` makes of them, as tree.Collated.
        """
        found = self.batch
        if callable(found):
            found = found(step) if _takes_step(found) else found()
        if self.collate is None or not _are_samples(found):
            return found
        from ddpcheck.target import collating  # noqa: PLC0415 (torch)

        return collating.collated(found, self.collate)


def load(ref: TargetRef) -> Target:
    """Returns the target that `ref` names.

    Raises:
        UsageError: with slugs target-missing-file, target-import, target-script,
            target-no-model, target-no-batch, target-no-loss, target-name-kind.
    """
    if ref.factory is not None:
        module, function = ref.factory.split(":")
        made: Target = getattr(importlib.import_module(module), function)(
            **dict(ref.arguments)
        )
        return made
    assert ref.path is not None
    chosen = dict(ref.names)
    scripts.check(Path(ref.path), [chosen.get(key, key) for key in ("model", "batch")])
    return from_module(importing.import_file(Path(ref.path)), ref)


def from_module(module: types.ModuleType, ref: TargetRef) -> Target:
    """Returns the target that a module's names define."""
    name = Path(ref.path or module.__name__).name
    chosen = dict(ref.names)
    found = {key: _find(module, key, chosen.get(key), name) for key in NAMES}
    if "collate" not in chosen and not callable(found["collate"]):
        found["collate"] = None  # a module of this name, say
    if found["model"] is None:
        raise _missing(module, name, "model")
    if found["batch"] is None:
        raise _missing(module, name, "batch")
    has_none = found["loss"] is None and found["train_step"] is None
    if has_none and _needs_loss(found["batch"], found["collate"]):
        raise _missing(module, name, "loss")
    for key, value in found.items():
        if value is not None:
            _check_kind(name, key, value)
    settings = {k: _setting(module, k, name) for k in SETTINGS if _sets(module, k)}
    return Target(name=name, path=str(ref.path or ""), settings=settings, **found)


def unpack(path: str) -> Target:
    """Returns the target that `ddpcheck.target.shipping.pack` wrote.

    Raises:
        UsageError: with slugs target-name-kind, target-no-loss.
    """
    made: Target = shipping.unpack(path)
    for key in NAMES:
        value = getattr(made, key)
        if value is not None or key in ("model", "batch"):
            _check_kind(made.name, key, value)
    has_none = made.loss is None and made.train_step is None
    if has_none and _needs_loss(made.batch, made.collate):
        raise missing_loss(made)
    return made


def sha256(path: str) -> str:
    """Returns the hex digest of the file's bytes, "" if it cannot be read."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""


def _find(module: types.ModuleType, key: str, chosen: str | None, name: str) -> Any:
    """Returns the object for a contract name, None where the file has none."""
    if chosen is None:
        return getattr(module, key, None)
    if not hasattr(module, chosen):
        raise usage_error(
            slug=f"target-no-{key.replace('_', '-')}",
            message=f"{name} defines no `{chosen}`",
            expected=_SIGNATURES[key],
            found=_describe_names(module),
            fix=f"give the name of one that is there, or define `{chosen}`",
        )
    return getattr(module, chosen)


def _missing(module: types.ModuleType, name: str, key: str) -> UsageError:
    if scripts.starts_group(importing.file_of(module)):
        return _script(module, name, key)
    found = _stand_in(module, key)
    use = found or "NAME"
    command = f"ddpcheck {name} --{key}-fn {use}"
    if key == "model":
        command = f"ddpcheck {name}:{use}"
    fix = f"define `{key}`, or name what takes its place: {command}"
    if found:
        fix = f"rename `{found}`, or run: {command}"
    return usage_error(
        slug=f"target-no-{key}",
        message=f"{name} defines no `{key}`",
        expected=_SIGNATURES[key],
        found=_describe_names(module),
        fix=fix,
    )


def _script(module: types.ModuleType, name: str, key: str) -> UsageError:
    return usage_error(
        slug="target-script",
        message=f"{name} is a training script, and defines no `{key}`",
        expected="model, batch and loss, or the script's step as train_step",
        found=_describe_names(module),
        fix=f"ddpcheck run {name}, with its arguments; or ddpcheck --init target.py, "
        f"and import there from {name}",
    )


def _stand_in(module: types.ModuleType, key: str) -> str | None:
    """Returns the name that is probably meant, None without a clear one."""
    known = [alias for alias in _ALIASES[key] if hasattr(module, alias)]
    if key == "model" and not known:
        known = [
            name
            for name, value in vars(module).items()
            if inspect.isclass(value)
            and value.__module__ == module.__name__
            and _is_module(value)
        ]
    return known[0] if len(known) == 1 else None


def _sets(module: types.ModuleType, key: str) -> bool:
    """Returns whether a file has a setting; `def simulate()` is code of its own."""
    value = getattr(module, key, None)
    is_code = callable(value) or isinstance(value, types.ModuleType)
    return hasattr(module, key) and not is_code


def _setting(module: types.ModuleType, key: str, name: str) -> Any:
    fix = f"correct `{key}` in {name}"
    origin = f"`{key}` in {name}"
    return settings_module.read(key, getattr(module, key), origin=origin, fix=fix)


def _needs_loss(batch: Any, collate: Any = None) -> bool:
    """Returns whether a batch is no dict, for which `model(**batch).loss` is used."""
    # What a function makes is known only when it is called.
    return not (callable(batch) or collate or isinstance(batch, dict | UserDict))


def _are_samples(batch: Any) -> bool:
    """Returns whether a batch is a list of samples, and not (inputs, targets) itself.

    A list of two is that where they are not two samples of one kind: DataLoader gives
    lists of two tensors.
    """
    if not isinstance(batch, list):
        return False
    kinds = {type(item) for item in batch}
    is_pair = len(batch) == 2 and not (len(kinds) == 1 and kinds <= {tuple, dict})  # noqa: PLR2004
    return not is_pair


def missing_loss(target: Target) -> UsageError:
    """Returns the error for a target that needs a loss and has none."""
    if not target.path:
        return _missing_argument(target.name)
    paths = {target.path, str(Path(target.path).absolute())}
    own = [m for m in list(sys.modules.values()) if importing.file_of(m) in paths]
    return _missing(own[0] if own else types.ModuleType("?"), target.name, "loss")


def _missing_argument(name: str) -> UsageError:
    """Returns the error for a target made of the arguments of a call."""
    return usage_error(
        slug="target-no-loss",
        message=f"{name}: the argument `loss` is missing",
        expected="loss, a function (output, target) -> scalar tensor",
        found="model and batch alone",
        fix="give a loss: (model, batch, loss); none is needed with train_step, "
        "or where the batch is one dict and model(**batch) has a .loss",
    )


def _check_no_arguments(target: Target) -> None:
    try:
        signature = inspect.signature(target.model)
    except (TypeError, ValueError):
        return  # built in: the call reports a wrong argument
    try:
        signature.bind()
    except TypeError as error:
        called = getattr(target.model, "__name__", "model")
        raise usage_error(
            slug="target-model-kind",
            message=f"{target.name}: `model` cannot be called without arguments",
            expected=_SIGNATURES["model"],
            found=f"{called}() is {error}",
            fix=f"def model(): return {called}(...)",
        ) from None


def _check_kind(name: str, key: str, value: Any) -> None:
    is_held = key == "batch" and isinstance(value, tuple | list | dict | UserDict)
    # nn.CrossEntropyLoss(output, target) would make a criterion of two settings.
    is_criterion = key == "loss" and inspect.isclass(value) and _is_module(value)
    if is_held or (callable(value) and not is_criterion):
        return
    if is_criterion:
        raise usage_error(
            slug="target-name-kind",
            message=f"{name}: `{key}` is a class, not an instance of it",
            expected=_SIGNATURES[key],
            found=f"class {value.__name__}",
            fix=f"{key} = {value.__name__}()",
        )
    raise usage_error(
        slug="target-name-kind",
        message=f"{name}: `{key}` is of the wrong kind",
        expected=_SIGNATURES[key],
        found=_kind(value),
        fix=f"make `{key}` a function",
    )


def _is_module(value: type) -> bool:
    return hasattr(value, "named_parameters")


def _describe_names(module: types.ModuleType) -> str:
    """Returns what the file itself defines, for the `found` line."""
    functions: list[str] = []
    classes: list[str] = []
    values: list[str] = []
    for key, value in vars(module).items():
        if key.startswith("_") or isinstance(value, types.ModuleType):
            continue
        own = getattr(value, "__module__", None) == module.__name__
        if inspect.isclass(value) or inspect.isroutine(value):
            if own:
                (classes if inspect.isclass(value) else functions).append(key)
        elif getattr(value, "__module__", "") not in ("typing", "__future__"):
            values.append(key)
    parts = [
        f"{label}: {cut(names)}"
        for label, names in (
            ("functions", functions),
            ("classes", classes),
            ("values", values),
        )
        if names
    ]
    return "; ".join(parts) or "an empty file"


def _kind(value: Any) -> str:
    kind = type(value)
    if kind.__module__ != "builtins":
        return f"{kind.__module__}.{kind.__name__}"
    short = repr(value)
    return f"{kind.__name__} {short}" if len(short) <= 40 else kind.__name__  # noqa: PLR2004


def _takes_step(function: Callable[..., Any]) -> bool:
    # Asked for every batch of every run; what else is callable may have no hash.
    is_plain = isinstance(function, types.FunctionType)
    return _known_to_take_step(function) if is_plain else _has_argument(function)


def _has_argument(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(
        p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        for p in parameters
    )


_known_to_take_step = functools.lru_cache(maxsize=8)(_has_argument)
