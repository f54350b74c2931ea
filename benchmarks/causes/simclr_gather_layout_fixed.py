"""The fixed twin of simclr_gather_layout."""


def loss(output, target, t=0.5):
    a, b = output
    z = torch.cat([gather(a), gather(b)])
    n = len(z)
    sim = z @ z.t() / t
    sim = sim.masked_fill(torch.eye(n, dtype=torch.bool), -1e9)
    return F.cross_entropy(sim, torch.arange(n).roll(n // 2))
