"""Fixes of labels that number the rank's own rows from 0, among gathered rows."""

from __future__ import annotations

from ddpcheck.diagnose.fixed.draft import Draft
from ddpcheck.diagnose.fixed.kinds import samples
from ddpcheck.diagnose.fixed.kinds.family import Wanted
from ddpcheck.run.intervention import Intervention, OffsetLabels


def add(fix: Intervention, wanted: Wanted, draft: Draft) -> bool:
    """Adds the offset; False for a step, whose model may number its own rows."""
    has_labels = "torch.arange(" in wanted.facts.source
    if not isinstance(fix, OffsetLabels) or wanted.attempt or not has_labels:
        return False
    if wanted.facts.has_train_step and not fix.within_forward:
        return False
    offset_labels(draft, wanted, within_forward=fix.within_forward)
    return True


_OFFSET = '''\
def offset(rows):
    """Labels of the rank's own rows begin after the rows of the ranks before it."""
    counts, arange = [0] * dist.get_world_size(), torch.arange
    dist.all_gather_object(counts, rows)

    def labels(*args, **kwargs):
        made = arange(*args, **kwargs)
        is_of_rows = made.shape == (rows,) and made.tolist() == list(range(rows))
        return made + sum(counts[: dist.get_rank()]) if is_of_rows else made

    return mock.patch.object(torch, "arange", labels)
'''
_CALL = """\
with offset(rows((output, target))):
    value = {loss}(output, target)
"""


def offset_labels(draft: Draft, wanted: Wanted, *, within_forward: bool) -> None:
    """Offsets what torch.arange makes of the rank's rows, in the loss or in forward."""
    draft.imports.add("from unittest import mock")
    draft.parts["offset"] = _OFFSET
    if within_forward:
        samples.run_within(draft, wanted, "offset", needs_model=False)
    else:
        samples.add_rows(draft)
        draft.loss = _CALL
