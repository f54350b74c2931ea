"""The fixed twin of comm_hook_sum."""


def allreduce_hook(state, bucket):
    buffer = bucket.buffer()
    buffer.div_(world())
    future = dist.all_reduce(buffer, async_op=True).get_future()
    return future.then(lambda f: f.value()[0])
