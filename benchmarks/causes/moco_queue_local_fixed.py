"""The fixed twin of moco_queue_local."""


class MoCo(nn.Module):
    def __init__(self, dim=8, k=64, m=0.9, t=0.2):
        super().__init__()
        self.m, self.t, self.k = m, t, k
        self.q = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, dim))
        self.kenc = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, dim))
        self.kenc.load_state_dict(self.q.state_dict())
        self.kenc.requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(k, dim), dim=1))
        self.register_buffer("ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def enqueue(self, keys):
        if dist.is_initialized():
            parts = [torch.empty_like(keys) for _ in range(world())]
            dist.all_gather(parts, keys.contiguous())
            keys = torch.cat(parts)
        p = int(self.ptr)
        self.queue[p : p + len(keys)] = keys
        self.ptr[0] = (p + len(keys)) % self.k

    def forward(self, im_q, im_k):
        q = F.normalize(self.q(im_q), dim=1)
        with torch.no_grad():
            for a, b in zip(self.q.parameters(), self.kenc.parameters()):
                b.mul_(self.m).add_(a, alpha=1 - self.m)
            k = F.normalize(self.kenc(im_k), dim=1)
        pos = (q * k).sum(1, keepdim=True)
        neg = q @ self.queue.clone().detach().t()
        self.enqueue(k)
        return torch.cat([pos, neg], 1) / self.t
