"""The fixed twin of hook_clips_local_grad."""


def model():
    torch.manual_seed(0)
    net = Net()
    return net


def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss(model(batch[0]), batch[1]).backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.02)
    optimizer.step()
