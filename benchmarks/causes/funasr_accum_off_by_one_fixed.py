"""The fixed twin of funasr_accum_off_by_one."""


def train_step(model, optimizer, batch, accum_grad=4):
    for batch_idx, (x, y) in enumerate(
        zip(batch[0].chunk(accum_grad), batch[1].chunk(accum_grad))
    ):
        context = nullcontext
        if isinstance(model, DDP):
            context = (
                nullcontext if (batch_idx + 1) % accum_grad == 0 else model.no_sync
            )
        with context():
            (loss(model(x), y) / accum_grad).backward()
        if (batch_idx + 1) % accum_grad == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            optimizer.zero_grad()
