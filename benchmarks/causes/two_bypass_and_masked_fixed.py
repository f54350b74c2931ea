"""The fixed twin of two_bypass_and_masked."""


def loss(output, target):
    value = F.cross_entropy(
        output.flatten(0, 1), target.flatten(), ignore_index=-100, reduction="sum"
    )
    count = (target != -100).sum()
    if dist.is_initialized():
        dist.all_reduce(count)
        return value * world() / count
    return value / count


def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    value = loss(model(batch[0]), batch[1])
    value.backward()
    optimizer.step()
