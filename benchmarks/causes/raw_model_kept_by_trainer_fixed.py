"""The fixed twin of raw_model_kept_by_trainer."""


def train_step(model, optimizer, batch):
    (x, t, noise), _ = batch
    terms = model(x, t, noise)
    value = terms["mse"].mean()
    optimizer.zero_grad()
    value.backward()
    optimizer.step()
