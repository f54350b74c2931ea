"""A rank that its last job changed is replaced before the next one."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from ddpcheck.ranks.messages import Job
from ddpcheck.ranks.pool import Pool

PIDS = Job(function="tests.ranks.jobs:pid")
DEEDS = {
    "": "x = sum(range(9))",
    "environment": "os.environ['DDPCHECK_TEST'] = '1'",
    "working directory": "os.chdir('/')",
    "standard streams": "os.close(1)",
    "sys.stdout": "sys.stdout = sys.stderr",
    "threads": "import threading; threading.Timer(60, print).start()",
    "child processes": "kept = subprocess.Popen(['sleep', '600'])",
    "signal handlers": "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "timers": "signal.setitimer(signal.ITIMER_REAL, 600)",
    "limits": "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
    "warning filters": "import warnings; warnings.simplefilter('error')",
    "interpreter": "sys.setrecursionlimit(5000)",
    "torch's defaults": "torch.set_default_device('meta')",
    "torch's modes": "torch.set_anomaly_enabled(True)",
    "global hooks": "torch.nn.modules.module.register_module_forward_hook(print)",
    "process group": "dist.destroy_process_group()",
    "torch": "torch.tanh = torch.no_grad()(torch.tanh)",
    "torch.autograd": "torch.autograd.graph = torch.nn",
    "torch.linalg": "torch.linalg.norm, torch.linalg.det = torch.sin, torch.cos",
    "torch.nn.functional": "del torch.nn.functional.relu",
    "torch.nn.modules.module.Module": "torch.nn.Module.eval = torch.nn.Module.train",
}


@pytest.fixture(scope="module")
def ranks(pool: Pool) -> Iterator[Pool]:
    """The pool; ranks of world size 1, with a process group."""
    yield pool
    pool.retire(1)


@pytest.mark.parametrize("left", DEEDS)
def test_rank_reports_what_a_job_left_and_is_replaced(left: str, ranks: Pool) -> None:
    (before,) = ranks.run(PIDS, 1)
    job = Job(function="tests.ranks.jobs:deed", arguments={"code": DEEDS[left]})
    (outcome,) = ranks.run(job, 1)
    assert outcome.kind == "done", outcome
    assert set(outcome.leftovers) == {left} - {""}
    (after,) = ranks.run(PIDS, 1)
    assert (after.value == before.value) is (left == "")


def test_first_step_of_an_optimizer_leaves_nothing(ranks: Pool) -> None:
    # torch wraps Adam.step then, once for the class.
    code = "torch.optim.Adam([torch.zeros(1, requires_grad=True)])"
    job = Job(function="tests.ranks.jobs:deed", arguments={"code": code})
    assert [ranks.run(job, 1)[0].leftovers for _ in range(2)] == [(), ()]


def test_import_of_the_compiler_leaves_nothing(ranks: Pool) -> None:
    # It takes the place of what stands in for it and wraps torch.manual_seed.
    code = "import torch._dynamo; assert torch.manual_seed.__wrapped__"
    job = Job(function="tests.ranks.jobs:deed", arguments={"code": code})
    assert [ranks.run(job, 1)[0].leftovers for _ in range(2)] == [(), ()]


def test_child_that_runs_on_as_its_rank_ends(ranks: Pool) -> None:
    job = Job(function="tests.ranks.jobs:fork_and_go_on")
    (outcome,) = ranks.run(job, 1)
    assert outcome.leftovers == ("child processes",)
    assert outcome.progress == ["before", "after"]
    with pytest.raises(psutil.NoSuchProcess):
        _wait_for_end(outcome.value)


def _wait_for_end(pid: int) -> None:
    psutil.Process(pid).wait(10)
    raise psutil.NoSuchProcess(pid)
