"""The fixed twin of sampler_seed_by_rank."""


def train_step(model, optimizer, batch):
    cfg = Settings.from_env()
    torch.manual_seed(cfg.process_seed)
    sampler = DistributedSampler(
        SCANS, cfg.world, cfg.rank, shuffle=True, seed=cfg.seed
    )
    sampler.set_epoch(int(batch[1][1][0]))
    for x, y in DataLoader(SCANS, batch_size=cfg.batch // cfg.world, sampler=sampler):
        optimizer.zero_grad()
        loss(model(x), (y, None)).backward()
        optimizer.step()
