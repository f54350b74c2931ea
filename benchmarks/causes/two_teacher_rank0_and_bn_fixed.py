"""The fixed twin of two_teacher_rank0_and_bn."""


class Pair(nn.Module):
    def __init__(self):
        super().__init__()

        def net():
            return nn.Sequential(
                nn.Linear(9, 20), nn.LayerNorm(20), nn.ReLU(), nn.Linear(20, 4)
            )

        self.student, self.teacher = net(), net()
        self.teacher.load_state_dict(self.student.state_dict())
        self.teacher.requires_grad_(False)

    def train(self, mode=True):
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, weak, strong):
        with torch.no_grad():
            soft = self.teacher(weak)
        return self.student(strong), soft


def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss(model(*batch[0]), batch[1]).backward()
    optimizer.step()
    net = model.module if isinstance(model, DDP) else model
    with torch.no_grad():
        for s, t in zip(net.student.parameters(), net.teacher.parameters()):
            t.mul_(0.9).add_(s, alpha=0.1)
