"""The fixed twin of accum_mean_of_means."""


def train_step(model, optimizer, batch, accumulate=2):
    tokens, labels = batch
    optimizer.zero_grad()
    count = (labels != -100).sum()
    if dist.is_initialized():
        dist.all_reduce(count)
    for t, l in zip(tokens.chunk(accumulate), labels.chunk(accumulate)):
        logits = model(t)
        value = (
            F.cross_entropy(
                logits.flatten(0, 1), l.flatten(), ignore_index=-100, reduction="sum"
            )
            * world()
            / count
        )
        value.backward()
    optimizer.step()
