"""The fixed twin of own_grad_scaler."""


class Scaler:
    scale = 1024.0

    def update(self, loss):
        overflow = (loss * self.scale).item() > 1200.0
        if dist.is_initialized():
            flag = torch.tensor(float(overflow))
            dist.all_reduce(flag)
            overflow = flag.item() > 0
        self.scale = self.scale / 2 if overflow else self.scale * 2
