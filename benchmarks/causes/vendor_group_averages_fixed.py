"""The fixed twin of vendor_group_averages."""


class FixedGroup(VendorGroup):
    def allreduce(self, tensors, options):
        return self.group.allreduce(tensors, options)


def wrap(model):
    return DDP(model, process_group=FixedGroup(dist.group.WORLD))
