"""The fixed twin of dcgan_ffbb."""


def train_step(model, optimizer, batch):
    real, fake = batch
    optimizer.zero_grad()
    d_real, d_fake = model(real), model(fake)
    err_real = F.binary_cross_entropy_with_logits(d_real, torch.ones_like(d_real))
    err_fake = F.binary_cross_entropy_with_logits(d_fake, torch.zeros_like(d_fake))
    (err_real + err_fake).backward()
    optimizer.step()
