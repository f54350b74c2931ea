"""Fixes of statistics of a shard: they are computed of the samples of all ranks."""

from __future__ import annotations

from ddpcheck.diagnose.fixed.draft import Draft
from ddpcheck.diagnose.fixed.kinds import samples
from ddpcheck.diagnose.fixed.kinds.family import Wanted
from ddpcheck.run.intervention import Intervention, Switch


def add(fix: Intervention, wanted: Wanted, draft: Draft) -> bool:
    """Adds what computes statistics of all samples."""
    if fix is not Switch.STATISTICS_OF_ALL_RANKS:
        return False
    share_statistics(draft, wanted)
    return True


_SHARED = '''\
STATISTICS = "mean", "sum", "var", "std", "amax", "amin", "max", "min", "any", "all"
STATISTICS += "median", "quantile", "norm", "bincount", "histc", "cumsum"


class OfAllRows(TorchFunctionMode):
    """Statistics of samples, without gradient, are those of the samples of all ranks.

    What a rank detaches of its own losses becomes the mean over ranks.
    """

    def __init__(self, model, rows):
        super().__init__()
        self.model, self.rank = model, dist.get_rank()
        self.counts = [0] * dist.get_world_size()
        dist.all_gather_object(self.counts, rows)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name, value = func.__name__, args[0] if args else None
        dim = (kwargs or {}).get("dim", args[1] if len(args) > 1 else None)
        if name in STATISTICS and self.is_of_samples(value, dim):
            args = self.of_all(value), *args[1:]
        made = func(*args, **(kwargs or {}))
        if name == "detach" and value.requires_grad and value.numel() == 1:
            dist.all_reduce(made := made.clone())
            made /= dist.get_world_size()
        return made

    def is_of_samples(self, value, dim):
        if not torch.is_tensor(value) or value.requires_grad or not value.dim():
            return False
        dims = [0] if dim is None or torch.is_tensor(dim) else [dim]
        own = [t for p in self.model.parameters() for t in (p, p.grad) if t is not None]
        own = {t.untyped_storage().data_ptr() for t in [*own, *self.model.buffers()]}
        is_own = value.untyped_storage().data_ptr() in own
        return 0 in dims and not is_own and len(value) % self.counts[self.rank] == 0

    def of_all(self, value):
        times = len(value) // self.counts[self.rank]
        parts = [value.new_empty(n * times, *value.shape[1:]) for n in self.counts]
        dist.all_gather(parts, value.contiguous())
        return torch.cat(parts)
'''


def share_statistics(draft: Draft, wanted: Wanted) -> None:
    """Computes the statistics of a step, or of forward, of the samples of all ranks."""
    draft.imports.add("from torch.overrides import TorchFunctionMode")
    draft.parts["OfAllRows"] = _SHARED
    samples.run_within(draft, wanted, "OfAllRows", needs_model=True)
