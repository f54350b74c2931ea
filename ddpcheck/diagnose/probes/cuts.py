"""The outputs at which the reference's model is cut, and the values behind the cuts."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ddpcheck.diagnose.probes import micro
from ddpcheck.diagnose.probes.evidence import Windows
from ddpcheck.diagnose.probes.flow import Flow
from ddpcheck.diagnose.probes.teacher import is_cut, is_data, module_of, num_blocks
from ddpcheck.run.intervention import Output

Place = tuple[int, str]  # (micro-batch, key)


class Cuts:
    """What is known of the outputs, by key.

    Args:
        size: number of samples in the batch.
        shard_rows: those of the first shard.
    """

    def __init__(self, size: int, shard_rows: int) -> None:
        self.windows = Windows(sizes=(size,))
        self.shard_rows = shard_rows
        self.dims: dict[str, tuple[int, ...]] = {}  # shapes on the first shard
        self.shard_outputs: dict[str, Tensor] = {}  # of the model, on the first shard
        self.is_given_samples = True  # the model, a row for each
        self.values: dict[Place, Tensor] = {}
        self.whole: set[str] = set()  # keys of model outputs without samples
        self.data: set[str] = set()  # of outputs that no gradient goes back from
        self.flow = Flow()

    @property
    def has_micros(self) -> bool:
        """Whether the step has several micro-batches."""
        return self.windows.count > 1

    def of_the_model_alone(self) -> None:
        """Forgets what was cut, and all modules but the model itself."""
        self.dims = {k: shape for k, shape in self.dims.items() if not module_of(k)}
        self.values.clear()
        self.flow = Flow()

    def value(
        self,
        name: str,
        place: Place,
        output: Tensor,
        perturb: Callable[[str, Tensor], Tensor] | None,
    ) -> Tensor | None:
        """Returns the value that continues from a cut, None if it is no cut.

        Args:
            name: of the module that returned the output.
            place: of the output.
            output: the module's own.
            perturb: (key, value) -> what goes on in a later pass; None in the first.
        """
        _, key = place
        if not (place in self.values if perturb else self._can_cut(*place, output)):
            if not name and self.dims.get(key) == tuple(output.shape):
                self.whole.add(key)  # as large for a shard
            return None
        if perturb:
            # On the values of the first pass: what a perturbed module feeds the next
            # one must not count as coupling.
            return perturb(key, self.values[place].detach())
        self.data |= {key} if is_data(output) else set()
        value = self.values[place] = output.detach().clone()
        return value

    def dim(self, key: str, value: Tensor) -> int:
        """Returns the dimension of the samples."""
        return micro.shard_dim(value, self.dims[key], self.shard_rows)

    def place(self, key: str, value: Tensor) -> tuple[int, int]:
        """Returns the dimension of the samples, and how many blocks of all it has."""
        mine, whole = self.shard_outputs.get(key), self.values.get((0, key))
        if mine is None or whole is None or self.has_micros:
            return self.dim(key, value), 1
        rows = (0, self.shard_rows, self.windows.sizes[0])
        return self.dim(key, value), num_blocks(mine, whole, rows)

    def own(self) -> set[str]:
        """Returns the keys of the model's own outputs that have samples."""
        return {key for _, key in self.values if key in self.shard_outputs}

    def laid(self) -> tuple[Output, ...]:
        """Returns the model's own whose samples lie otherwise than one per row."""
        own = ((k, v) for (_, k), v in self.values.items() if k in self.shard_outputs)
        places = {key: self.place(key, value) for key, value in own}
        return micro.laid(places, are_given_samples=self.is_given_samples)

    def _can_cut(self, number: int, key: str, tensor: Tensor) -> bool:
        mine = self.dims.get(key)
        if mine is None or not is_cut(tensor):
            return False
        shape = tuple(tensor.shape)
        return micro.has_shard(self.windows, number, shape, mine, self.shard_rows)
