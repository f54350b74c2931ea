"""The fixed twin of seq2seq_token_sum."""


def loss(output, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten())
