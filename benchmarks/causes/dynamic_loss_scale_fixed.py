"""The fixed twin of dynamic_loss_scale."""


class DynamicScaler:
    """Halves the scale while the scaled loss would leave the range, doubles it back every few steps."""

    def __init__(self, scale=2.0**12, limit=2.0**10, interval=2):
        self.scale, self.limit, self.interval, self.good = scale, limit, interval, 0

    @torch.no_grad()
    def adapt(self, value):
        value = value.detach().clone()
        if dist.is_initialized():
            dist.all_reduce(value, op=dist.ReduceOp.MAX)
        while value.item() * self.scale > self.limit:
            self.scale, self.good = self.scale / 2, 0
        self.good += 1
        if self.good > self.interval:
            self.scale, self.good = self.scale * 2, 0

    def unscale(self, params):
        for p in params:
            if p.grad is not None:
                p.grad.div_(self.scale)
