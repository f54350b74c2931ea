"""The fixed twin of two_mbstd_and_clip_overreduced."""


class D(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(10, 16), nn.Linear(17, 1)

    def forward(self, x):
        h = F.leaky_relu(self.a(x), 0.2)
        std = h.std(1, unbiased=False, keepdim=True)
        return self.b(torch.cat([h, std], 1))[:, 0]


def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss(model(batch[0]), batch[1]).backward()
    total = sum(p.grad.pow(2).sum() for p in model.parameters())
    scale = (1.0 / total.sqrt()).clamp(max=1.0)
    for p in model.parameters():
        p.grad.mul_(scale)
    optimizer.step()
