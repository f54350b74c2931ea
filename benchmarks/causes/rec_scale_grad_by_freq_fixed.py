"""The fixed twin of rec_scale_grad_by_freq."""


class Rec(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(9, 6, padding_idx=0)
        self.user = nn.Linear(4, 6)

    def forward(self, items, user):
        return (self.item(items).mean(1) * self.user(user)).sum(1)
