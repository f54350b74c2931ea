"""The fixed twin of arcface_outside_wrap."""


def wrap(model):
    model.trunk = DDP(model.trunk)
    model.proxies = DDP(model.proxies)
    return model
