"""The fixed twin of grpo_groups."""


def batch(step):
    g = torch.Generator().manual_seed(70 + step)
    prompt = torch.randint(0, 16, (PROMPTS, 3), generator=g)
    answer = torch.randint(0, 16, (COMPLETIONS, PROMPTS, 5), generator=g)
    reward = torch.randn(COMPLETIONS, PROMPTS, generator=g) + torch.arange(PROMPTS)
    tokens = torch.cat([prompt.expand(COMPLETIONS, -1, -1), answer], -1)
    return {
        "tokens": tokens.transpose(0, 1).flatten(0, 1),
        "reward": reward.T.flatten(),
    }


def advantages(reward):
    group = reward.view(-1, COMPLETIONS)
    return (
        (group - group.mean(1, keepdim=True)) / (group.std(1, keepdim=True) + 1e-4)
    ).flatten()
