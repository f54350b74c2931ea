"""Which variables name a group of processes, and what ddpcheck makes of it."""

from __future__ import annotations

import re

import pytest

from ddpcheck.cli import nodes
from ddpcheck.errors.problem import Problem, UsageError
from ddpcheck.ranks.hosts import Hello
from ddpcheck.ranks.messages import Group, launched_group, unusable_group
from ddpcheck.run.session.session import CannotCheckError
from ddpcheck.target.options import Options

# Of the second process of the second of two machines.
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
GROUP = Group(
    rank=3,
    world_size=4,
    local_rank=1,
    local_world_size=2,
    address="node1",
    port=29500,
    attempt="2",
    has_store=True,
)


def test_variables_of_torchrun_name_a_group() -> None:
    assert launched_group(TORCHRUN) == GROUP
    assert not GROUP.is_one_machine


def test_variables_of_another_launcher_name_a_group_whose_store_rank_0_holds() -> None:
    found = launched_group({k: v for k, v in TORCHRUN.items() if "LOCAL" not in k[:5]})
    assert found is not None
    few = {k: TORCHRUN[k] for k in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    assert launched_group(few) == Group(
        rank=3,
        world_size=4,
        local_rank=0,
        local_world_size=1,
        address="node1",
        port=29500,
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"RANK": ""},
        {"MASTER_PORT": ""},
        {"WORLD_SIZE": "four"},
        {"RANK": "4"},
        {"RANK": "-1"},
        {"RANK": "0", "WORLD_SIZE": "1"},
    ],
    ids=str,
)
def test_other_variables_name_none(changes: dict[str, str]) -> None:
    assert launched_group({**TORCHRUN, **changes}) is None


def test_variables_that_name_no_group_are_reported() -> None:
    assert unusable_group({**TORCHRUN, "RANK": "4", "MASTER_PORT": "x"}) == (
        "RANK=4, WORLD_SIZE=4, MASTER_ADDR=node1, MASTER_PORT=x"
    )
    alone = {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}
    for variables in (TORCHRUN, alone, {"RANK": "4", "WORLD_SIZE": "4"}):
        assert unusable_group(variables) == ""


def test_world_size_is_that_of_the_group() -> None:
    follower = nodes.Follower(GROUP)
    assert nodes.for_group(Options(), follower).world_sizes == (4,)
    same = Options(world_sizes=(4,))
    assert nodes.for_group(same, nodes.Leader(GROUP)).world_sizes == (4,)
    with pytest.raises(UsageError) as caught:
        nodes.for_group(Options(world_sizes=(2, 4)), follower)
    assert str(caught.value) == (
        "ddpcheck: the world size is fixed by the launcher's group [group-world-size]\n"
        "  expected   WORLD_SIZE=4 of the launcher alone\n"
        "  found      --world-sizes 2,4\n"
        "  fix        leave --world-sizes out, or start ddpcheck without the launcher\n"
        "  more       ddpcheck --explain group-world-size"
    )


def test_what_differs_between_machines_is_a_usage_error() -> None:
    own = {"the target file": "/shared/m.py 0123", "torch": "2.13.0"}
    same = Hello(rank=1, machine="node1", identity=dict(own))
    other = Hello(rank=2, machine="node2", identity={**own, "torch": "2.6.0"})
    nodes._compare(own, [same])  # noqa: SLF001
    with pytest.raises(UsageError) as caught:
        nodes._compare(own, [same, other])  # noqa: SLF001
    assert str(caught.value) == (
        "ddpcheck: torch is not the same on all machines [group-differs]\n"
        "  expected   2.13.0, as on rank 0\n"
        "  found      2.6.0, rank 2 on node2\n"
        "  fix        a folder that all machines share, one environment for all\n"
        "  more       ddpcheck --explain group-differs"
    )


def test_problem_and_trouble_elsewhere_name_the_rank() -> None:
    problem = Problem(slug="target-no-loss", message="m.py defines no `loss`")
    wrong = Hello(rank=2, machine="node2", problem=problem)
    with pytest.raises(UsageError) as usage:
        nodes._raise_first([Hello(rank=1), wrong])  # noqa: SLF001
    assert usage.value.problem.message == ("m.py defines no `loss` (rank 2 on node2)")
    broken = Hello(rank=3, machine="node2", trouble=("importing m.py ends", "stack"))
    with pytest.raises(CannotCheckError) as trouble:
        nodes._raise_first([broken])  # noqa: SLF001
    assert trouble.value.message == "importing m.py ends (rank 3 on node2)"
    assert trouble.value.detail == "stack"


def test_machines_are_reported_with_their_ranks() -> None:
    hellos = [Hello(rank=1, machine="node1"), Hello(rank=2, machine="node2")]
    found = nodes._machines(hellos)  # noqa: SLF001
    assert re.fullmatch(r"\S+: rank 0; node1: rank 1; node2: rank 2", found)
