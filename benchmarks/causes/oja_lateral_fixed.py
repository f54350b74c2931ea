"""The fixed twin of oja_lateral."""

import torch.distributed as dist


class HebbianLinear(nn.Module):
    def __init__(self, inputs, outputs, rate=0.05):
        super().__init__()
        self.weight = nn.Parameter(
            torch.randn(outputs, inputs) * inputs**-0.5, requires_grad=False
        )
        self.rate = rate

    def forward(self, x):
        y = x @ self.weight.T
        if self.training:
            with torch.no_grad():
                change = y.T @ x - (y.T @ y).tril() @ self.weight
                count = x.new_tensor(float(len(x)))
                if dist.is_initialized():
                    dist.all_reduce(change)
                    dist.all_reduce(count)
                self.weight.data += self.rate * change / count
        return y.detach()
