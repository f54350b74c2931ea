"""The fixed twin of ppo_obs_normalizer."""


class RunningMeanStd(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(shape))
        self.register_buffer("running_var", torch.ones(shape))
        self.register_buffer("count", torch.ones(()))

    def forward(self, x):
        y = (x - self.running_mean) / torch.sqrt(self.running_var + 1e-5)
        if self.training:
            with torch.no_grad():
                mean, square, n = (
                    x.mean(0),
                    x.pow(2).mean(0),
                    torch.tensor(float(len(x)), dtype=x.dtype),
                )
                if dist.is_initialized():
                    for t in (mean, square, n):
                        dist.all_reduce(t)
                    mean, square = mean / world(), square / world()
                var = square - mean**2
                delta, total = mean - self.running_mean, self.count + n
                m2 = (
                    self.running_var * self.count
                    + var * n
                    + delta**2 * self.count * n / total
                )
                self.running_mean.add_(delta * n / total)
                self.running_var.copy_(m2 / total)
                self.count.copy_(total)
        return y.clamp(-5, 5)
