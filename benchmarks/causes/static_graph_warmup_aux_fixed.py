"""The fixed twin of static_graph_warmup_aux."""


def loss(output, target):
    label, step = target
    value = F.cross_entropy(output[0], label)
    value = value + (0.5 if int(step[0]) >= 1 else 0.0) * F.cross_entropy(
        output[1], label
    )
    return value
