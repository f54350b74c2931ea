"""reproduce.py: a standalone script (torch only) that shows the divergence.

Plain text in, plain text out: the smallest divergent run of a report, as a script of
at most 60 lines that trains the target in one process and on ranks, prints the
numbers, and exits 1 while they differ.
"""

from __future__ import annotations

from pathlib import Path

from ddpcheck.report import Finding, Run
from ddpcheck.run.spec import RunSpec
from ddpcheck.target import TargetRef

_TEMPLATE = '''\
"""{title}

Found by ddpcheck: {summary}
Needs torch only. Exits 1 while {world} ranks differ from one process.
"""
import importlib.util, os, sys, tempfile
import torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

PATH, NAMES, ROWS = {path!r}, {names!r}, {rows}
WORLD, STEPS, DTYPE, RTOL = {world}, {steps}, torch.{dtype}, {rtol!r}

def load():
    sys.path.insert(0, os.path.dirname(PATH))
    spec = importlib.util.spec_from_file_location("reproduced", PATH)
    module = sys.modules["reproduced"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda name: getattr(module, NAMES.get(name, name), None)

def each(x, f):  # f on every tensor of nested tuples, lists and dicts
    if isinstance(x, torch.Tensor): return f(x)
    if isinstance(x, dict): return {{k: each(v, f) for k, v in x.items()}}
    return type(x)([each(v, f) for v in x]) if isinstance(x, (tuple, list)) else x

def strip(name):
    return ".".join(part for part in name.split(".") if part != "module")

def train(get, rank=None):  # one process, or one rank on its rows
    torch.manual_seed(1 if rank is None else rank + 2)
    made, seen = get("model"), []
    model = (made if isinstance(made, torch.nn.Module) else made()).to(DTYPE).train()
    if rank is not None:
        wrap = get("wrap") or (lambda m: DistributedDataParallel(m, find_unused_parameters={unused}))
        model = wrap(model)
    optimizer = (get("optimizer") or (lambda p: torch.optim.SGD(p, lr=0.1)))(list(model.parameters()))
    hook = register_optimizer_step_pre_hook(lambda *_: seen.append(
        {{strip(n) + ".grad": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}}))
    for step in range(STEPS):
        batch = get("batch")
        batch = batch if not callable(batch) else batch(step) if batch.__code__.co_argcount else batch()
        batch = each(batch, lambda t: (t.to(DTYPE) if t.is_floating_point() else t)[:ROWS] if t.dim() else t)
        batch = batch if rank is None else each(batch, lambda t: t.tensor_split(WORLD)[rank] if t.dim() else t)
        if get("train_step"):
            get("train_step")(model, optimizer, batch)
        else:
            x, y = (batch, None) if isinstance(batch, dict) else batch
            optimizer.zero_grad()
            out = model(**x) if isinstance(x, dict) else model(*x) if isinstance(x, (tuple, list)) else model(x)
            (get("loss")(out, y) if get("loss") else out.loss).backward()
            optimizer.step()
        seen.append({{strip(n): t.detach().clone() for n, t in model.state_dict().items()}})
    hook.remove()
    return seen

def run_rank(rank, folder):
    store = dist.FileStore(folder + "/store", WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD)
    torch.save(train(load(), rank), f"{{folder}}/{{rank}}.pt")
    dist.barrier(), os._exit(0)

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        one = train(load())
        try: mp.spawn(run_rank, (folder,), WORLD)
        except Exception as error: sys.exit("the ranks fail: " + str(error).strip().splitlines()[-1])
        ranks = [torch.load(f"{{folder}}/{{rank}}.pt") for rank in range(WORLD)]
    rows = [(float((b[n] - a[n]).abs().max() / a[n].abs().max().clamp(min=1e-12)), n, f"rank {{r}}, record {{i}}") for r, seen
            in enumerate(ranks) for i, (a, b) in enumerate(zip(one, seen)) for n in a if n in b and a[n].is_floating_point()]
    for diff, name, where in sorted(rows, reverse=True)[:5]:
        print(f"{{diff:.3g}} relative difference  {{name}}  {{where}}")
    sys.exit(int(max(rows)[0] > 1000 * RTOL))
'''


def script(
    ref: TargetRef,
    runs: list[Run],
    findings: list[Finding],
    smallest: RunSpec | None,
    *,
    unused: bool,
) -> str:
    """Returns the text of reproduce.py, "" where a script cannot show it.

    `smallest` is the run to show: its world size, steps and samples.
    """
    spec = smallest
    if spec is None or ref.path is None:
        return ""
    if spec.noise != "asis" or spec.batch_norm != "asis" or spec.loss != "asis":
        return ""
    summary = findings[0].summary if findings else "the cause is unknown"
    run = next(r for r in runs if (r.mode, r.world_size) == ("ddp", spec.world_size))
    return _TEMPLATE.format(
        title=f"{Path(ref.path).name}: {findings[0].slug if findings else 'divergence'}",
        summary=summary.replace("\\", "/").replace('"""', "'"),
        world=spec.world_size,
        path=str(Path(ref.path).resolve()),
        steps=spec.steps,
        rows=spec.rows or None,
        dtype=run.dtype if run.dtype in ("float64", "float32") else "float32",
        rtol=run.rtol,
        names=dict(ref.names),
        unused=unused,
    )
