"""The fixed twin of instance_whitening_input."""


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 16, batch_first=True)
        self.out = nn.Linear(16, 3)

    def forward(self, series):
        mean, std = series.mean(1, keepdim=True), series.std(1, keepdim=True)
        h, _ = self.rnn((series - mean) / (std + 1e-5))
        return self.out(h[:, -1])
