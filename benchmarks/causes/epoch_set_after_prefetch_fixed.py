"""The fixed twin of epoch_set_after_prefetch."""


def epoch_batches(epoch):
    if not dist.is_initialized():
        return Prefetcher(DataLoader(CALLS, batch_size=BATCH, sampler=order_of(epoch)))
    sampler = DistributedSampler(CALLS)
    sampler.set_epoch(epoch)
    batches = Prefetcher(
        DataLoader(CALLS, batch_size=BATCH // dist.get_world_size(), sampler=sampler)
    )
    return batches
