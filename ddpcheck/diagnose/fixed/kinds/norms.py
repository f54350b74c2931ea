"""Fixes that synchronise batch norms."""

from __future__ import annotations

from collections.abc import Sequence

from ddpcheck.diagnose.fixed.draft import Draft, Facts
from ddpcheck.diagnose.fixed.kinds import whole_steps
from ddpcheck.diagnose.fixed.kinds.family import Wanted, listed
from ddpcheck.run.intervention import Intervention, SyncBatchNorm


def add(fix: Intervention, wanted: Wanted, draft: Draft) -> bool:
    """Adds batch norms of all ranks."""
    if not isinstance(fix, SyncBatchNorm):
        return False
    if not whole_steps.is_given_all(wanted):  # they see all rows already
        synchronise_norms(draft, wanted.facts, fix.names)
    return True


_SYNCED = '''\
def synced(norm, x):
    """Normalises with the mean and the variance of all ranks, weighted by counts."""
    if not (norm.training and dist.is_initialized()):
        return type(norm).forward(norm, x)
    dims = [d for d in range(x.dim()) if d != 1]  # all but the channels
    shape = [-1 if d == 1 else 1 for d in range(x.dim())]
    count = x.new_tensor([x.numel() // x.shape[1]])
    total = all_reduce(torch.cat([x.sum(dims), count]))
    n, mean = total[-1].detach(), total[:-1] / total[-1].detach()
    centred = x - mean.view(shape)
    var = all_reduce(centred.square().sum(dims)) / n
    with torch.no_grad():
        if norm.track_running_stats:
            norm.num_batches_tracked += 1
            part = norm.momentum or 1 / float(norm.num_batches_tracked)
            norm.running_mean.lerp_(mean, part)
            norm.running_var.lerp_(var * n / (n - 1), part)  # unbiased, as in torch
    x = centred * (var + norm.eps).rsqrt().view(shape)
    return x * norm.weight.view(shape) + norm.bias.view(shape) if norm.affine else x
'''
_SYNC = """\
for {each}:
    if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)){chosen}:
        module.forward = functools.partial(synced, module)
"""
_CONVERT = "model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)\n"


def synchronise_norms(draft: Draft, facts: Facts, names: Sequence[str]) -> None:
    """Synchronises batch norms: torch's SyncBatchNorm runs on GPUs alone."""
    if facts.on_gpu and not names:
        draft.before_wrap += _CONVERT
        return
    draft.imports |= {"import functools", "from torch import nn"}
    draft.imports.add("from torch.distributed.nn.functional import all_reduce")
    draft.parts["synced"] = _SYNCED
    each = (
        "name, module in model.named_modules()"
        if names
        else "module in model.modules()"
    )
    chosen = f" and name in {listed(names)}" if names else ""
    draft.before_wrap += _SYNC.format(each=each, chosen=chosen)
