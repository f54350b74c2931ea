"""The fixed twin of sampler_pads_epoch."""


def make_loader(epoch):
    world = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if dist.is_initialized() else 0
    sampler = DistributedSampler(
        TRAIN, num_replicas=world, rank=rank, shuffle=True, seed=SEED, drop_last=True
    )
    sampler.set_epoch(epoch)
    return DataLoader(
        TRAIN, batch_size=GLOBAL_BATCH // world, sampler=sampler, drop_last=True
    )
