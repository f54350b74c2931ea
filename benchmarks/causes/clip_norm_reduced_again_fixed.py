"""The fixed twin of clip_norm_reduced_again."""


def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss(model(batch[0]), batch[1]).backward()
    group = None
    normalize_and_clip(list(model.parameters()), 1.0, group)
    optimizer.step()
