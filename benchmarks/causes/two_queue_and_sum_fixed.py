"""The fixed twin of two_queue_and_sum."""


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 6), nn.Linear(6, 3)
        self.register_buffer("centre", torch.zeros(6))

    def forward(self, x):
        h = self.body(x).tanh()
        out = self.head(h), h - self.centre
        if self.training:
            mean = h.detach().mean(0)
            if dist.is_initialized():
                dist.all_reduce(mean)
                mean = mean / world()
            self.centre.mul_(0.9).add_(mean, alpha=0.1)
        return out


def loss(output, target):
    logits, spread = output
    return F.cross_entropy(logits, target) + 0.1 * spread.pow(2).sum(1).mean()
