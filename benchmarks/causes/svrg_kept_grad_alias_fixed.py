"""The fixed twin of svrg_kept_grad_alias."""


def train_step(model, optimizer, batch):
    kept = getattr(optimizer, "kept", None)
    for p in model.parameters():
        p.grad = None
    loss(model(batch[0]), batch[1]).backward()
    grads = [p.grad.clone() for p in model.parameters()]
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p -= 0.1 * (grads[i] + (0.5 * kept[i] if kept else 0))
    optimizer.kept = grads
