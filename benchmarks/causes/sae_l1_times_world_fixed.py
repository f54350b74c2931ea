"""The fixed twin of sae_l1_times_world."""


def train_step(model, optimizer, batch):
    x, target = batch
    optimizer.zero_grad()
    total = (model(x) - target).pow(2).sum()
    count = torch.tensor(float(len(x)), dtype=total.dtype)
    if dist.is_initialized():
        dist.all_reduce(count)
    l1 = sum(p.abs().sum() for p in model.parameters())
    (world() * total / count + 1e-2 * l1).backward()
    optimizer.step()
