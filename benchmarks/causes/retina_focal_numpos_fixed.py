"""The fixed twin of retina_focal_numpos."""


class SetCriterion:
    def __init__(self, box_weight=0.5):
        self.box_weight = box_weight

    def __call__(self, output, target):
        positive = target["labels"] >= 0
        onehot = (
            F.one_hot(target["labels"].clamp(min=0), 3).to(output["logits"].dtype)
            * positive[..., None]
        )
        num_pos = positive.sum().to(output["logits"].dtype)
        if dist.is_initialized():
            dist.all_reduce(num_pos)
            num_pos = num_pos / world()
        num_pos = num_pos.clamp(min=1)
        box = F.smooth_l1_loss(
            output["boxes"][positive], target["boxes"][positive], reduction="sum"
        )
        return (
            sigmoid_focal(output["logits"], onehot) / num_pos
            + self.box_weight * box / num_pos
        )


loss = SetCriterion()
