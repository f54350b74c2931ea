"""The fixed twin of diffusion_step_seed."""

import torch.distributed as dist


def draw(step, like):
    """Reproducible noise of a training step."""
    generator = torch.Generator().manual_seed(1234 + step)
    rank, world = (
        (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    )
    noise = torch.randn(world * len(like), *like.shape[1:], generator=generator).to(
        like
    )
    t = torch.randint(0, STEPS, (world * len(like),), generator=generator)
    own = slice(rank * len(like), (rank + 1) * len(like))
    return noise[own], t[own]
