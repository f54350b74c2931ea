"""Fixes of state that differs over ranks: weights, buffers, and what the step keeps."""

from __future__ import annotations

import re
import textwrap

from ddpcheck.diagnose.fixed.draft import Draft
from ddpcheck.diagnose.fixed.kinds import gathers, statistics, whole_steps
from ddpcheck.diagnose.fixed.kinds.family import Wanted
from ddpcheck.run.intervention import GlobalModule, Intervention, Substitute, Switch


def add(fix: Intervention, wanted: Wanted, draft: Draft) -> bool:
    """Adds what makes the ranks' state one."""
    if fix is Switch.BROADCAST_BEFORE_STEP:
        broadcast_before(draft)
    elif fix in (Switch.BROADCAST_AFTER_STEP, Switch.STATE_BROADCAST):
        return broadcast_after(draft, wanted)
    elif not isinstance(fix, Substitute) or fix.boundary not in _STATE:
        return False
    elif wanted.attempt > 1 and fix.boundary == "state":
        forward_all_samples(draft, wanted, fix.names)
    elif _is_of_samples(wanted):
        show_all_samples(draft, wanted)
    elif fix.boundary == "writes":
        forward_all_samples(draft, wanted, fix.names)
    elif fix.boundary == "state":
        merge_modules(draft, wanted, fix.names)
    else:
        merge_beside(draft, wanted, fix.names)
    return True


_STATE = ("state", "writes", "beside")


def show_all_samples(draft: Draft, wanted: Wanted) -> None:
    """Lets the code that computes the state see the samples of all ranks."""
    if wanted.facts.has_train_step and "_hook(" not in wanted.facts.source:
        whole_steps.give_all_rows(draft, wanted)
    else:
        statistics.share_statistics(draft, wanted)


def forward_all_samples(draft: Draft, wanted: Wanted, names: tuple[str, ...]) -> None:
    """Gives the modules that write the state in forward the samples of all ranks."""
    for name in names:
        gathers.gather_for_module(draft, wanted, GlobalModule(name=name))


_BROADCAST = '''\
def broadcast(model, *_):
    """Gives all ranks the weights and buffers of rank 0."""
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.data, 0)
'''


def broadcast_before(draft: Draft) -> None:
    """Broadcasts weights and buffers from rank 0 before each forward."""
    draft.parts["broadcast"] = _BROADCAST
    draft.before_wrap += "model.register_forward_pre_hook(broadcast)\n"


def broadcast_after(draft: Draft, wanted: Wanted) -> bool:
    """Broadcasts weights and buffers from rank 0 after each step."""
    draft.parts["broadcast"] = _BROADCAST
    draft.after_step = draft.after_step or "broadcast(model)\n"
    return wanted.facts.has_train_step


_MERGED = '''\
def merged(value):
    """Returns the mean over ranks; in the same tensor, if it is one."""
    total = torch.as_tensor(value).detach().double()
    total = total.clone()
    dist.all_reduce(total)
    total /= dist.get_world_size()
    if not torch.is_tensor(value):
        return total.item()
    value.data.copy_(total)
    return value
'''
_OF_FIRST = '''\
def merged(value):
    """Returns the value of rank 0; in the same tensor, if it is one."""
    first = torch.as_tensor(value).detach().clone()
    dist.broadcast(first, 0)
    if not torch.is_tensor(value):
        return first.item()
    value.data.copy_(first)
    return value
'''
# What the first rank alone does is not averaged with what the others leave undone.
_BY_FIRST = r"rank\(\) == 0|rank == 0|is_main|not rank"
_NET = 'net = getattr(model, "module", model)\n'


def _merge(draft: Draft, wanted: Wanted) -> None:
    draft.parts["merged"] = _OF_FIRST if _is_by_first(wanted) else _MERGED


def _is_by_first(wanted: Wanted) -> bool:
    return bool(re.search(_BY_FIRST, wanted.facts.source))


def _is_of_samples(wanted: Wanted) -> bool:
    """Returns whether the state is what the ranks have computed of their samples."""
    return _is_by_first(wanted) == bool(wanted.attempt)


def merge_modules(draft: Draft, wanted: Wanted, names: tuple[str, ...]) -> None:
    """Merges the buffers and untrained parameters of modules over ranks."""
    _merge(draft, wanted)
    code = "with torch.no_grad():\n"
    for name in names:
        module = f"net.get_submodule({name!r})" if name else "net"
        code += (
            f"    own = {module}\n"
            "    untrained = (p for p in own.parameters() if not p.requires_grad)\n"
            "    for value in [*own.buffers(), *untrained]:\n"
            "        merged(value)\n"
        )
    if wanted.facts.has_train_step:
        draft.after_step += _NET * ("net =" not in draft.after_step) + code
    else:
        draft.parts["merge"] = f"def merge(net, *_):\n{textwrap.indent(code, '    ')}"
        draft.before_wrap += "model.register_forward_hook(merge)\n"


def merge_beside(draft: Draft, wanted: Wanted, names: tuple[str, ...]) -> None:
    """Merges what is kept outside of modules over ranks: each by its expression."""
    has_step = wanted.facts.has_train_step
    _merge(draft, wanted)
    after, of_model = "", ""
    for name in names:
        root = re.split(r"[.\[]", name, maxsplit=1)[0]
        rest = name.removeprefix(root)
        held = {"model": "net", "optimizer": "optimizer"}.get(root, f"original.{root}")
        value = held + rest
        line = f"{value} = merged({value})\n"
        if root == "model" and not has_step:
            of_model += "    " + line
        else:
            after += line
    if has_step:
        needs_net = "net." in after and "net =" not in draft.after_step
        draft.after_step += _NET * needs_net + after
        return
    if of_model:
        draft.parts["merge"] = f"def merge(net, *_):\n{of_model}"
        draft.before_wrap += "model.register_forward_hook(merge)\n"
    if after:
        body = textwrap.indent(after, "        ")
        draft.parts["merge_beside"] = (
            f"def merge_beside(optimizer, *_):\n    if dist.is_initialized():\n{body}"
        )
        draft.optimizer += "made.register_step_post_hook(merge_beside)\n"
