"""The fixed twin of two_accum_masked_off_by_one."""


def train_step(model, optimizer, batch, k=2):
    optimizer.zero_grad()
    count = (batch[1] != -100).sum()
    if dist.is_initialized():
        dist.all_reduce(count)
        count = count / world()
    for i, (x, y) in enumerate(zip(batch[0].chunk(k), batch[1].chunk(k))):
        last = (i + 1) % k == 0
        with model.no_sync() if isinstance(model, DDP) and not last else nullcontext():
            value = (
                F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")
                / count
            )
            value.backward()
    optimizer.step()
