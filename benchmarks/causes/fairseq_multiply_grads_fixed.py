"""The fixed twin of fairseq_multiply_grads."""


class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def multiply_grads(self, c):
        for p in self.model.parameters():
            if p.grad is not None:
                p.grad.data.mul_(c)

    def train_step(self, tokens, target):
        self.optimizer.zero_grad()
        value = loss(self.model(tokens), target)
        value.backward()
        sample_size = (target != 0).sum()
        if dist.is_initialized():
            dist.all_reduce(sample_size)
        self.multiply_grads(world() / sample_size.item())
        self.optimizer.step()
