"""The fixed twin of stylegan_r1_lazy."""


def train_step(model, optimizer, batch):
    real, fake = batch
    optimizer.zero_grad()
    (F.softplus(-model(real)).mean() + F.softplus(model(fake)).mean()).backward()
    optimizer.step()
    optimizer.zero_grad()
    x = real.detach().requires_grad_(True)
    score = model(x)
    (grad,) = torch.autograd.grad(score.sum(), x, create_graph=True)
    penalty = 5.0 * grad.pow(2).sum((1, 2, 3)).mean() + 0 * score.sum()
    penalty.backward()
    optimizer.step()
