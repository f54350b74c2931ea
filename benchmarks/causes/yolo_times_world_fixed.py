"""The fixed twin of yolo_times_world."""


def train_step(model, optimizer, batch):
    preds = model(batch[0])
    value, items = criterion(preds, batch[1])
    value = value.sum()
    optimizer.zero_grad()
    value.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1000.0)
    optimizer.step()
