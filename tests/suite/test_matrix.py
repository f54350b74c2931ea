"""Every model with every loss, batch norm mode and data-parallel mode.

A cell is one of these at one world size. Theory says of each whether it must equal one
process or the training that is predicted for it (zoo.predict), and that is asserted.

World size 2 has all cells: 410 rows, of which 26 keep dropout. World size 3 has the 15
cases of `cells.DIRECT_CASES`, every model and every loss among them, but for dropout
and batch norm mode "local", "asis" to a model of plain batch norms. These have world
sizes 1, 4 and 8, too, and 5 of them, LARGEST_CASES, 16: a slow test makes those, but
for FIRST_CASES. A parameter server has every loss with both reductions at world sizes
2, 3, 4 and 8: 144 cells, of which SERVER_CASES at 2 are made with every run. The
other 1704 cells are left out here, as they differ from their neighbours in the number
of ranks alone. `ddpcheck --suite` runs them.
"""

from __future__ import annotations

import pytest

from ddpcheck.suite import cells, runner
from ddpcheck.suite.zoo import matrix

# One worker forks the ranks of all world sizes and keeps the references of a case: two
# would take half as much work again, and no less time.
pytestmark = pytest.mark.xdist_group("conformance")

ROWS = tuple(cells.rows())
FIRST_CASES = (("mlp", "mean"), ("conv_bn", "mean"))
SERVER_CASES = (("mlp", "mean"), ("mlp", "sum"), ("regression", "sum_global"))
LARGEST_CASES = (
    *FIRST_CASES,
    ("unet", "iou"),
    ("transformer", "masked"),
    ("tied", "dice"),
)


def _cells(row: cells.Row) -> list[cells.Cell]:
    """Returns the cells of a row that are made here."""
    if row.reduce:
        return cells.cells(row)
    case = row.model, row.loss
    is_plain = row.noise == "asis" and row.batch_norm != "local"
    if case not in cells.DIRECT_CASES or not is_plain:
        return cells.cells(row, (2,))
    if case in LARGEST_CASES:
        return cells.cells(row)
    return cells.cells(row, [size for size in matrix.WORLD_SIZES if size != 16])


def _quick_cells(row: cells.Row) -> list[cells.Cell]:
    """Returns those of them that are made with every run of the tests."""
    if row.reduce:
        is_quick = (row.model, row.loss) in SERVER_CASES
        return [c for c in _cells(row) if is_quick and c.world_size == 2]
    is_first = (row.model, row.loss) in FIRST_CASES
    return [c for c in _cells(row) if is_first or c.world_size in (2, 3)]


def _slow_cells(row: cells.Row) -> list[cells.Cell]:
    quick = _quick_cells(row)
    return [cell for cell in _cells(row) if cell not in quick]


def _check(wanted: list[cells.Cell], suite_runner: runner.Runner) -> None:
    results = suite_runner.run(wanted)
    failures = [result.why for result in results if result.status == "FAILED"]
    assert not failures, "\n".join(failures)
    expected = {"equal": "ok", "differs": "predicted"}
    found = [(result.cell.world_size, result.status) for result in results]
    assert found == [(c.world_size, expected[c.expected]) for c in wanted]


@pytest.mark.parametrize("row", [r for r in ROWS if _quick_cells(r)], ids=str)
def test_row_comes_out_as_theory_predicts(
    row: cells.Row, suite_runner: runner.Runner
) -> None:
    _check(_quick_cells(row), suite_runner)


@pytest.mark.slow
@pytest.mark.parametrize("row", [r for r in ROWS if _slow_cells(r)], ids=str)
def test_row_comes_out_so_at_other_world_sizes(
    row: cells.Row, suite_runner: runner.Runner
) -> None:
    _check(_slow_cells(row), suite_runner)


def test_rows_are_the_whole_product() -> None:
    served = {(r.model, r.loss, r.reduce) for r in ROWS if r.mode == "ps"}
    rows = [r for r in ROWS if r.mode != "ps"]
    plain = {(r.model, r.loss, r.batch_norm, r.mode) for r in rows if r.noise == "asis"}
    assert plain == {
        (model, loss, batch_norm, mode)
        for model, loss in matrix.CASES
        for batch_norm in matrix.BATCH_NORM_MODES[model]
        for mode in ("dp", "ddp")
    }
    assert served == {
        (model, loss, reduce)
        for model in ("mlp", "regression")
        for loss in matrix.LOSSES_OF[model]
        for reduce in ("mean", "sum")
    }
    assert len(ROWS) == len(set(ROWS))


def test_server_is_expected_to_equal_one_process_where_the_reduction_fits() -> None:
    verdicts = {
        (row.loss, row.reduce): [c.expected for c in cells.cells(row)]
        for row in ROWS
        if row.mode == "ps" and row.model == "regression"
    }
    equal = {
        ("mean", "mean"),
        ("sum", "sum"),
        ("mean_global", "mean"),
        ("sum_global", "mean"),
        ("masked_global", "mean"),
    }
    assert {key for key, found in verdicts.items() if set(found) == {"equal"}} == equal
    others = {key: found for key, found in verdicts.items() if key not in equal}
    assert len(others) == 7
    assert all(found == ["differs"] * 4 for found in others.values())


def test_left_out_cells_are_as_many_as_documented() -> None:
    whole = sum(len(cells.cells(row)) for row in ROWS)
    made = sum(len(_cells(row)) for row in ROWS)
    assert __doc__ is not None
    with_dropout = sum(row.noise == "sample" for row in ROWS)
    assert f"all cells: {len(ROWS)} rows, of which {with_dropout} keep" in __doc__
    assert f"other {whole - made} cells are left" in __doc__
    assert f"the {len(cells.DIRECT_CASES)}\ncases of" in __doc__


def test_large_cases_cover_every_model_and_loss() -> None:
    assert set(cells.DIRECT_CASES) <= set(matrix.CASES)
    assert {model for model, _ in cells.DIRECT_CASES} == set(matrix.LOSSES_OF)
    assert {loss for _, loss in cells.DIRECT_CASES} == set(matrix.CLASS_LOSSES)
