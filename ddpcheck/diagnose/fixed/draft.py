"""The text of fixed.py: what it overrides of the user's file, in plain torch.

A `Draft` holds the changes; a kind of fix adds its own (kinds/). The file loads the
user's file by its path, has all its names, and defines again only what changes.
"""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddpcheck.target import importing
from ddpcheck.target.target import TargetRef

NAME = "fixed.py"
_WIDTH = 88
_INDENT = "    "

_HEAD = '"""{file} with the fix of {slugs}.'
_MARK = 'Written by ddpcheck, and checked as it is."""\n'  # report/output.py knows it
_LOAD = """\
spec = importlib.util.spec_from_file_location("original", {path!r})
original = sys.modules["original"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(original)"""
_OF_PACKAGE = "original = importlib.import_module({module!r})"
_NAMES = "globals().update(vars(original) | globals())  # all names of the file\n"


@dataclass(slots=True, kw_only=True)
class Draft:
    """The changes of one fixed.py, each as code.

    `before_loss`: statements on `output` and `target`. `loss`: what calls the user's
    loss, where that is more than a call. `after_loss`: statements on its `value`.
    `before_wrap`: statements on the `model` that the user's wrap gets. `options`: DDP
    is built again on what the user's wrap made, with these arguments; None: it is left
    as it is. `before_ddp`: statements before that. `after_wrap`: statements on the
    `wrapped` model. `optimizer`: statements on the `made` optimizer. `parts`: functions
    and classes that these use.

    `around`: context managers in which the ranks run the user's train_step; without
    one, forward, loss and the optimizer's step. `building`: those in which they call
    the user's wrap and optimizer. `before_step`, `after_step`: statements on the
    `model`, the `optimizer` and the `batch` of a train_step. `at_end`: statements after
    all functions, by what they do.
    """

    imports: set[str] = field(default_factory=set)
    parts: dict[str, str] = field(default_factory=dict)
    before_loss: str = ""
    loss: str = ""
    after_loss: str = ""
    before_wrap: str = ""
    before_ddp: str = ""
    options: dict[str, str] | None = None
    after_wrap: str = ""
    optimizer: str = ""
    around: list[str] = field(default_factory=list)
    building: list[str] = field(default_factory=list)
    before_step: str = ""
    after_step: str = ""
    at_end: dict[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether it changes nothing."""
        statements = self.before_loss, self.after_loss, self.before_wrap
        of_objects = self.after_wrap, self.optimizer, self.loss
        of_steps = self.around, self.building, self.before_step, self.after_step
        last = self.at_end, self.parts
        changes = any((*statements, *of_objects, *of_steps, *last))
        return not changes and self.options is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the file has to know of the target.

    `idle`: parameters may lack gradients. `asks_group`: its code calls
    torch.distributed, in any of its files. `source`: of the user's file.
    """

    has_wrap: bool
    has_train_step: bool
    idle: bool
    asks_group: bool = False
    source: str = ""
    on_gpu: bool = False


_HAS_LOSS = re.compile(r"^def loss\b|^loss = (?!None)|^from .*\bloss\b", re.MULTILINE)
_HAS_NONE = re.compile(r"^del .*\bloss\b", re.MULTILINE)


def has_loss(source: str) -> bool:
    """Returns whether the file defines loss(): a model may compute it as well."""
    return bool(_HAS_LOSS.search(source)) and not _HAS_NONE.search(source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The whole file, and the part of it that is shown: what it defines.

    `imports` are the lines that this part needs.
    """

    text: str
    code: str
    imports: tuple[str, ...] = ()


def write(draft: Draft, ref: TargetRef, facts: Facts, slugs: list[str]) -> Written:
    """Returns the text of fixed.py for a target that a file defines."""
    file = ref.path or ref.source
    assert file is not None
    if draft.around and not facts.has_train_step:
        draft = _spread(draft, facts)
    path = Path(file).resolve()
    folder, module = importing.place(path)
    names = dict(ref.names)
    if draft.after_loss and not (has_loss(facts.source) or "loss" in names):
        draft = _into_forward(draft)
    code = "\n\n\n".join(_parts(draft, facts, names))
    load = _LOAD.format(path=str(path))
    if "." in module:
        load = _OF_PACKAGE.format(module=module)
    imports = {*draft.imports}
    if "dist." in code:
        imports.add("import torch.distributed as dist")
    if "torch." in code:
        imports.add("import torch")
    if "DistributedDataParallel" in code:
        imports.add("from torch.nn.parallel import DistributedDataParallel")
    renamed = "".join(
        f"{name} = original.{own}\n"
        for name, own in sorted(names.items())
        if name != own and f"\ndef {name}(" not in f"\n{code}"
    )
    text = (
        _title(path.name, slugs)
        + _block({"import importlib.util", "import sys", *imports})
        + f"\nsys.path.insert(0, {folder!r})\n{load}\n{_NAMES}{renamed}\n\n{code}\n"
    )
    return Written(text=text, code=code, imports=tuple(sorted(imports)))


def _title(file: str, slugs: list[str]) -> str:
    shown = file.encode("unicode_escape").decode().replace('"', "'")
    text = _HEAD.format(file=shown, slugs=", ".join(dict.fromkeys(slugs)))
    return "\n".join(textwrap.wrap(text, _WIDTH)) + f"\n{_MARK}"


def _block(imports: set[str]) -> str:
    """Returns the import lines, those of Python first; one for a module's names."""
    names: dict[str, list[str]] = {}
    for line in sorted(imports):
        start, _, name = line.rpartition(" import ")
        names.setdefault(start and f"{start} import ", []).append(name or line)
    plain = names.pop("", [])
    lines = {*plain, *(start + ", ".join(found) for start, found in names.items())}
    torchs = {line for line in lines if line.split()[1].startswith("torch")}
    groups = [sorted(lines - torchs, key=_order), sorted(torchs, key=_order)]
    return "\n\n".join("\n".join(group) for group in groups if group) + "\n"


def _order(line: str) -> tuple[bool, str]:
    return line.startswith("from"), line


def _spread(draft: Draft, facts: Facts) -> Draft:
    """Returns it with what is around a step around what ddpcheck's own step calls."""
    draft = dataclasses.replace(draft)
    for context in draft.around:
        draft.before_wrap += f"model.forward = {context}(model.forward)\n"
        draft.optimizer += (
            f"if dist.is_initialized():\n    made.step = {context}(made.step)\n"
        )
    if re.search(r"^(def )?loss\b", facts.source, re.MULTILINE):
        draft.loss = "\n".join(
            _within(draft.around, draft.loss or "value = {loss}(output, target)")
        )
    return draft


_IN_FORWARD = '''\
def change_loss(model):
    """Changes the loss that the model computes; the batch is its arguments."""
    forward = model.forward

    def run(**batch):
        output = forward(**batch)
        is_dict = isinstance(output, dict)
        value = output["loss"] if is_dict else output.loss
{changes}
        if is_dict:
            output["loss"] = value
        else:
            output.loss = value
        return output

    model.forward = run
'''
_SAMPLES = "len(target)", "len(next(iter(batch.values())))"


def _into_forward(draft: Draft) -> Draft:
    """Returns it with what it does to the loss in the model's forward."""
    changes = textwrap.indent(draft.after_loss.strip("\n"), _INDENT * 2)
    part = _IN_FORWARD.format(changes=changes.replace(*_SAMPLES))
    return dataclasses.replace(
        draft,
        after_loss="",
        before_wrap=draft.before_wrap + "change_loss(model)\n",
        parts={"change_loss": part, **draft.parts},
    )


def _within(contexts: Sequence[str], code: str) -> list[str]:
    """Returns the lines of the code inside of the context managers."""
    lines = code.strip("\n").splitlines()
    if not contexts:
        return lines
    first = f"with {', '.join(contexts)}:"
    if len(first) <= _WIDTH - len(_INDENT):
        return [first, *_indented(code)]
    return ["with (", *(f"{_INDENT}{c}," for c in contexts), "):", *_indented(code)]


def _parts(draft: Draft, facts: Facts, names: Mapping[str, str]) -> list[str]:
    found = []  # what changes comes before what that uses
    has_step = draft.around or draft.before_step or draft.after_step
    if has_step and facts.has_train_step:
        found.append(_train_step(draft, names.get("train_step", "train_step")))
    if draft.before_loss or draft.loss or draft.after_loss:
        found.append(_loss(draft, names.get("loss", "loss")))
    is_wrapped = draft.before_wrap or draft.after_wrap or draft.options is not None
    # ddpcheck's own DDP looks for unused parameters where there are any; plain DDP
    # raises in the second step.
    is_idle = facts.idle and not facts.has_wrap
    if is_wrapped or is_idle or (draft.building and facts.has_wrap):
        found.append(_wrap(draft, facts, names.get("wrap", "wrap")))
    if draft.optimizer or draft.building:
        found.append(_optimizer(draft, facts, names.get("optimizer", "optimizer")))
    added = [*draft.parts.values(), *draft.at_end.values()]
    return found + [text.strip("\n") for text in added]


def _loss(draft: Draft, name: str) -> str:
    usual = f"original.{name}(output, target)"
    calls = draft.loss.format(loss=f"original.{name}") or f"value = {usual}"
    lines = [
        "def loss(output, target):",
        "    if not dist.is_initialized():  # the single process",
        f"        return {usual}",
        *_indented(draft.before_loss),
        *_indented(calls),
    ]
    if not draft.after_loss and lines[-1].lstrip().startswith("value = "):
        lines[-1] = lines[-1].replace("value =", "return", 1)
        return "\n".join(lines)
    return "\n".join([*lines, *_indented(draft.after_loss), "    return value"])


def _train_step(draft: Draft, name: str) -> str:
    call = f"original.{name}(model, optimizer, batch)"
    lines = [
        "def train_step(model, optimizer, batch):",
        "    if not dist.is_initialized():  # the single process",
        f"        return {call}",
        *_indented(draft.before_step),
    ]
    if not draft.after_step:
        ran = _within(draft.around, f"return {call}")
        return "\n".join([*lines, *_indented("\n".join(ran))])
    ran = _within(draft.around, f"value = {call}")
    lines += _indented("\n".join(ran)) + _indented(draft.after_step)
    return "\n".join([*lines, "    return value"])


_BARE = '''\
def bare(module):
    """Takes every DDP off that the file's own wrap() put on."""
    for name, child in list(module.named_children()):
        setattr(module, name, bare(child))
    return module.module if isinstance(module, DistributedDataParallel) else module


'''


def _wrap(draft: Draft, facts: Facts, name: str) -> str:
    own = f"original.{name}(model)" if facts.has_wrap else ""
    options = dict(draft.options or {})
    if facts.idle:
        options.setdefault("find_unused_parameters", "True")
    given = "".join(f", {key}={value}" for key, value in options.items())
    made, before = f"DistributedDataParallel(model{given})", ""
    lines = ["def wrap(model):", *_indented(draft.before_wrap)]
    within = draft.building
    if own and draft.options is None:
        made = own
    elif own:
        before = _BARE
        code = _within(within, f"model = bare({own})")
        lines, within = [*lines, *_indented("\n".join(code))], []
    lines += _indented(draft.before_ddp)
    last = "wrapped =" if draft.after_wrap else "return"
    lines += _indented("\n".join(_within(within, f"{last} {made}")))
    if draft.after_wrap:
        lines += [*_indented(draft.after_wrap), "    return wrapped"]
    return before + "\n".join(lines)


_USUAL = "getattr(original, {name!r}, lambda p: torch.optim.SGD(p, lr=0.1))"


def _optimizer(draft: Draft, facts: Facts, name: str) -> str:
    usual = _USUAL.format(name=name)
    if re.search(rf"^def {name}\(", facts.source, re.MULTILINE):
        usual = f"original.{name}"
    return "\n".join(
        [
            "def optimizer(params):",
            *_indented("\n".join(_within(draft.building, f"made = {usual}(params)"))),
            *_indented(draft.optimizer),
            "    return made",
        ]
    )


def _indented(code: str) -> list[str]:
    return textwrap.indent(code.strip("\n"), _INDENT).splitlines()
