"""The fixed twin of masked_lm_seeded."""

import torch.distributed as dist


class MaskedEncoder(nn.Module):
    def __init__(self, vocabulary=20, width=12, length=8, masked=3):
        super().__init__()
        self.embed = nn.Embedding(vocabulary + 1, width)
        self.position = nn.Parameter(torch.randn(length, width) * 0.2)
        layer = nn.TransformerEncoderLayer(
            width, 2, 24, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)
        self.masked, self.mask_id = masked, vocabulary
        self.register_buffer("seed", torch.tensor(99))

    def choose(self, rows, length):
        generator = torch.Generator().manual_seed(int(self.seed))
        self.seed += 1
        rank, world = (
            (dist.get_rank(), dist.get_world_size())
            if dist.is_initialized()
            else (0, 1)
        )
        order = torch.rand(world * rows, length, generator=generator).argsort(1)
        return order[rank * rows : (rank + 1) * rows, : self.masked]

    def forward(self, tokens):
        where = self.choose(*tokens.shape)
        hidden = self.encoder(
            self.embed(tokens.scatter(1, where, self.mask_id)) + self.position
        )
        logits = self.head(
            hidden.gather(1, where.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
        )
        return logits, tokens.gather(1, where)
