"""The fixed twin of detr_num_boxes_global."""


def loss(output, target):
    num_boxes = target["valid"].sum().to(output.dtype)
    if dist.is_initialized():
        dist.all_reduce(num_boxes)
    num_boxes = torch.clamp(num_boxes / world(), min=1)
    l1 = (output - target["boxes"]).abs().sum(-1)
    return 5 * (l1 * target["valid"]).sum() / num_boxes
