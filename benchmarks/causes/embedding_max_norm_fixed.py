"""The fixed twin of embedding_max_norm."""


class TransE(nn.Module):
    def __init__(self):
        super().__init__()
        self.entity = nn.Embedding(30, 8)
        self.relation = nn.Embedding(5, 8)

    def forward(self, h, r, t):
        return (self.entity(h) + self.relation(r) - self.entity(t)).norm(dim=1)
