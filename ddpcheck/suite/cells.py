"""The cells of the matrix."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ddpcheck.suite.zoo import matrix

# Few cases, with every model and every loss among them: where they differ from one
# process at 2 ranks, they are compared with that itself.
DIRECT_CASES = (
    ("mlp", "mean"),
    ("mlp", "sum"),
    ("mlp", "masked_global"),
    ("regression", "masked"),
    ("regression", "sum_global"),
    ("conv", "class_weighted"),
    ("conv", "mean_global"),
    ("conv_bn", "mean"),
    ("unet", "iou"),
    ("unet", "dice_global"),
    ("transformer", "masked"),
    ("transformer", "iou_global"),
    ("unused_head", "class_weighted_global"),
    ("tied", "dice"),
    ("bn_dropout", "iou_global"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A model and loss in one mode: what all world sizes have in common.

    `noise` "asis" runs with silent dropout; "sample" keeps dropout and ties it to the
    sample, and is run only for cells that must equal single-process training: no
    prediction exists with dropout.
    """

    model: str
    loss: str
    batch_norm: str
    mode: str
    noise: str = "asis"
    reduce: str = ""  # what a parameter server makes of the gradients

    @property
    def column(self) -> str:
        """What heads its column in the table: "ddp sync", "ps sum"."""
        return f"{self.mode} {self.reduce or self.batch_norm}"

    def __str__(self) -> str:
        """Returns the row's name: "conv_bn-mean-sync-ddp"."""
        parts = [self.model, self.loss, self.batch_norm, self.mode]
        parts += [self.reduce] if self.reduce else []
        return "-".join(parts + ["sample"] * (self.noise == "sample"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run to judge."""

    row: Row
    world_size: int

    @property
    def expected(self) -> matrix.Verdict:
        """The result that theory predicts."""
        row = self.row
        return matrix.expected(
            row.model,
            row.loss,
            row.batch_norm,
            row.mode,
            self.world_size,
            row.reduce,
        )

    def __str__(self) -> str:
        """Returns the cell's name: "conv_bn-mean-sync-ddp at world size 4"."""
        return f"{self.row} at world size {self.world_size}"


def rows() -> Iterator[Row]:
    """Yields all rows, those of one case together."""
    for model, loss in matrix.CASES:
        for batch_norm in matrix.BATCH_NORM_MODES[model]:
            for mode in matrix.MODES:
                for reduce in matrix.reductions(model, mode):
                    yield Row(
                        model=model,
                        loss=loss,
                        batch_norm=batch_norm,
                        mode=mode,
                        reduce=reduce,
                    )
        if model in matrix.HAS_DROPOUT:
            yield from _with_dropout(model, loss)


def _with_dropout(model: str, loss: str) -> Iterator[Row]:
    for batch_norm in matrix.BATCH_NORM_MODES[model]:
        for mode in matrix.MODES:
            if not matrix.reductions(model, mode):
                continue
            if matrix.expected(model, loss, batch_norm, mode, 2) == "equal":
                yield Row(
                    model=model,
                    loss=loss,
                    batch_norm=batch_norm,
                    mode=mode,
                    noise="sample",
                )


def cells(row: Row, world_sizes: Collection[int] = matrix.WORLD_SIZES) -> list[Cell]:
    """Returns the cells of a row at these world sizes, as far as its mode has them."""
    sizes = matrix.world_sizes(row.mode)
    return [Cell(row=row, world_size=size) for size in world_sizes if size in sizes]
