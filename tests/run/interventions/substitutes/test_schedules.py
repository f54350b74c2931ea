"""The numbers of a parameter group are read and set by name, those of tuples too."""

from __future__ import annotations

import torch
from torch import nn

from ddpcheck.run.interventions.substitutes import substitutes
from ddpcheck.run.steps import group_numbers


def test_betas_of_the_single_process_are_given_to_the_update() -> None:
    weight = nn.Parameter(torch.zeros(1))
    single = torch.optim.AdamW([weight], lr=0.5, betas=(0.75, 0.875))
    ranks = torch.optim.AdamW([weight], lr=0.25, betas=(0.5, 0.625))
    numbers = group_numbers(single)
    assert (numbers[0]["betas[0]"], numbers[0]["betas[1]"]) == (0.75, 0.875)
    with substitutes._substituted_schedule(  # noqa: SLF001
        [(0, numbers)], [()], lambda: {"weight": weight}
    ):
        ranks.step()
    assert ranks.param_groups[0]["betas"] == (0.75, 0.875)
    assert ranks.param_groups[0]["lr"] == 0.5
