"""The fixed twin of random_projection_rank_seed."""


def wrap(model):
    torch.manual_seed(1234 + rank())
    if rank() > 0:
        model.projection.copy_(torch.randn_like(model.projection))
    return DDP(model)
