"""The fixed twin of mean_teacher_rank0."""


def train_step(model, optimizer, batch):
    inputs, target = batch
    optimizer.zero_grad()
    loss(model(*inputs), target).backward()
    optimizer.step()
    net = model.module if isinstance(model, DDP) else model
    update_ema(net)
