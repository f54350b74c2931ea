"""The fixed twin of rank0_logs_metric."""


def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    value = loss(model(batch[0]), batch[1])
    value.backward()
    optimizer.step()
    logged = reduce_mean(value)
    if rank() == 0:
        assert logged == logged
