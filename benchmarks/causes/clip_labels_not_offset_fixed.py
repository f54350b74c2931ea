"""The fixed twin of clip_labels_not_offset."""


def loss(output, target):
    image, text, scale = output
    all_image, all_text = image, text
    labels = torch.arange(len(image))
    if dist.is_initialized():
        all_image, all_text = (
            torch.cat(dnn.all_gather(image)),
            torch.cat(dnn.all_gather(text)),
        )
        labels = labels + len(image) * rank()
    per_image, per_text = scale * image @ all_text.t(), scale * text @ all_image.t()
    return (F.cross_entropy(per_image, labels) + F.cross_entropy(per_text, labels)) / 2
