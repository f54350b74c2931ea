"""reproduce.py: a standalone script (torch only) that shows the divergence.

Plain text in, plain text out: the smallest divergent run of a report, as a script of
at most 60 lines that trains the target in one process and on ranks, prints the
numbers, and exits 1 while they differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from ddpcheck.errors.problem import visible
from ddpcheck.report.data import Finding, Run
from ddpcheck.report.render import wording
from ddpcheck.run.spec import NATIVE, RunSpec
from ddpcheck.target import importing
from ddpcheck.target.target import TargetRef

# torch._dynamo is imported before ranks are forked, or each of them would do so.
_TEMPLATE = '''\
"""{title}

Found by ddpcheck: {summary}
{numbers} Needs torch only. Exits 1 while {world} ranks differ from one process.
"""
import {imports}faulthandler, importlib.util, os, re, signal, sys, tempfile, torch, torch._dynamo, torch.distributed as dist, torch.multiprocessing as mp; from torch.optim.optimizer import register_optimizer_step_pre_hook

PATH, NAMES, ROWS, WITHOUT = {path!r}, {names!r}, {rows}, {without!r}
WORLD, STEPS, DTYPE, RTOL, DEADLINE_S = {world}, {steps}, torch.{dtype}, {rtol!r}, {deadline_s}
sys.path.insert(0, {folder!r})
{load}
get = lambda name: getattr(module, NAMES.get(name, name), None)
hung = lambda stack: next((f"at line {{line}} of {{os.path.basename(file)}}, in {{name}}" for file, line, name in re.findall(r'File "(.+)", line (\\d+) in (.+)', stack) if file == PATH), "in the step of this script" if "in train\\n" in stack else "after its last step")
strip = lambda name: ".".join(part for part in name.split(".") if part != "module")
{cast}

def each(x, f):  # f on every tensor of nested tuples, lists, mappings and dataclasses
    if isinstance(x, torch.Tensor): return f(x)
    if hasattr(x, "keys"): return {{k: each(x[k], f) for k in x.keys()}}
    if hasattr(x, "__dataclass_fields__"): return type(x)(**{{k: each(v, f) for k, v in vars(x).items()}})
    return type(x)([each(v, f) for v in x]) if isinstance(x, (tuple, list)) else x

def train(rank=None):  # one process, or one rank on its rows
    torch.manual_seed(1 if rank is None else rank + 2)
    made, seen = get("model"), []
    model = (made if isinstance(made, torch.nn.Module) else made())._apply(cast).train()
    for name in WITHOUT: model.set_submodule(name, torch.nn.Identity())  # it differs without them, too
    if rank is not None:
        model = (get("wrap") or (lambda m: torch.nn.parallel.DistributedDataParallel(m, find_unused_parameters={unused})))(model)
    optimizer = (get("optimizer") or (lambda p: torch.optim.SGD(p, lr=0.1)))(list(model.parameters()))
    register_optimizer_step_pre_hook(lambda *_: seen.append(
        {{strip(n) + ".grad": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}}))
    for step in range(STEPS):
        batch = get("batch")
        batch = batch if not callable(batch) else batch(step) if batch.__code__.co_argcount else batch()
{shard}
        if get("train_step"):
            get("train_step")(model, optimizer, batch)
        else:
            x, y = (batch, None) if isinstance(batch, dict) else batch
            optimizer.zero_grad()
            out = model(**x) if isinstance(x, dict) else model(*x) if isinstance(x, (tuple, list)) else model(x)
            (get("loss")(out, y) if get("loss") else out.loss).backward()
            optimizer.step()
        seen.append({{strip(n): t.detach().clone() for n, t in model.state_dict().items()}})
    return seen

def run_rank(rank, folder):
    faulthandler.dump_traceback_later(DEADLINE_S, file=open(f"{{folder}}/{{rank}}.txt", "w")), signal.alarm(DEADLINE_S + 2), dist.init_process_group("gloo", store=dist.FileStore(folder + "/store", WORLD), rank=rank, world_size=WORLD)
    torch.save(train(rank), f"{{folder}}/{{rank}}.pt")
    dist.barrier(), os._exit(0)

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        try: mp.start_processes(run_rank, (folder,), WORLD, start_method="fork")
        except Exception as error: sys.exit("the ranks fail: " + ("; ".join(f"rank {{r}} hangs {{hung(stack)}}" for r in range(WORLD) if (stack := open(f"{{folder}}/{{r}}.txt").read())) or str(error).strip().splitlines()[-1]))
        one, ranks = train(), [torch.load(f"{{folder}}/{{rank}}.pt") for rank in range(WORLD)]
    relative = lambda a, b: float(((b - a).abs().max() / a.abs().max().clamp(min=1e-12)).nan_to_num(torch.inf, torch.inf))
    rows = [(relative(a[n].cdouble(), b[n].cdouble()), n, f"rank {{r}}, record {{i}}") for r, seen in enumerate(ranks)
            for i, (a, b) in enumerate(zip(one, seen)) for n in a if n in b and a[n].numel()]
    for diff, name, where in sorted(rows, reverse=True)[:5]: print(f"{{diff:.3g}} relative difference  {{name}}  {{where}}")
    sys.exit(int(max(rows)[0] > min(1000 * RTOL, 0.1)))
'''


_CAST = (
    "cast = lambda t: t.to(DTYPE) if t.is_floating_point() else "
    "t.to(DTYPE.to_complex()) if t.is_complex() else t"
)
_NO_CAST = "cast = lambda t: t  # all tensors are as the target makes them, DTYPE too"

_MOST_FAULTS = 2  # of ranks, that the script names
_LOAD = """\
spec = importlib.util.spec_from_file_location("reproduced", PATH)
module = sys.modules["reproduced"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)"""


_OF_TENSORS = """\
        batch = each(batch, lambda t: cast(t)[:ROWS] if t.dim() else t)
        batch = batch if rank is None else each(batch, lambda t: t.tensor_split(WORLD)[rank] if t.dim() else t)"""
_OF_SAMPLES = """\
        which = torch.arange(len(batch[:ROWS])) if rank is None else torch.arange(len(batch[:ROWS])).tensor_split(WORLD)[rank]
        batch = each(get("collate")(copy.deepcopy([batch[i] for i in which])), cast)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Smallest:
    """The smallest run that diverges, and what came out of it."""

    spec: RunSpec
    run: Run
    unused: bool  # parameters that no gradient reaches
    deadline_s: int  # after which the script takes ranks to hang
    collates: bool = False  # the batch is a list of samples


def _in_docstring(text: str) -> str:
    return visible(text).replace("\\", "/").replace('"""', "'")


def script(
    ref: TargetRef,
    findings: list[Finding],
    smallest: Smallest | None,
) -> str:
    """Returns the text of reproduce.py, "" where a script cannot show it.

    `smallest` is the run to show: its world size, steps, samples and modules.
    """
    if smallest is None or ref.path is None or ref.is_script:
        return ""
    spec, run = smallest.spec, smallest.run
    if spec.noise != "asis" or spec.batch_norm != "asis" or spec.loss != "asis":
        return ""
    summary = findings[0].summary if findings else "the cause is unknown"
    folder, module = importing.place(Path(ref.path))
    is_own = spec.constants == NATIVE
    return _TEMPLATE.format(
        title=_in_docstring(
            f"{Path(ref.path).name}: {findings[0].slug if findings else 'divergence'}"
        ),
        summary=_in_docstring(summary),
        world=spec.world_size,
        path=str(Path(ref.path).resolve()),
        folder=folder,
        # A part of a package by its own name, a file of its own by none that is taken.
        load=f"module = importlib.import_module({module!r})"
        if "." in module
        else _LOAD,
        steps=spec.steps,
        rows=spec.rows or None,
        without=spec.without,
        numbers=_in_docstring(_numbers(run)),
        dtype=run.dtype if is_own or run.dtype == "float64" else "float32",
        cast=_NO_CAST if is_own else _CAST,
        rtol=run.rtol,
        deadline_s=smallest.deadline_s,
        names=dict(ref.names),
        unused=smallest.unused,
        shard=_OF_SAMPLES if smallest.collates else _OF_TENSORS,
        imports="copy, " * smallest.collates,
    )


def _numbers(run: Run) -> str:
    """Returns what ddpcheck measured, in the words that the script prints."""
    rows = [(t, f"{t.name}.grad") for t in run.gradients.tensors]
    rows += [(t, t.name) for q in (run.weights, run.buffers) for t in q.tensors]
    finite = [row for row in rows if math.isfinite(row[0].rel_diff)]
    # Rounding over rounding may be any number.
    real = [row for row in finite if row[0].excess > 1]
    if run.faults and not real:
        shown = "; ".join(wording.fault_line(f) for f in run.faults[:_MOST_FAULTS])
        rest = len(run.faults) - _MOST_FAULTS
        return f"The ranks fail: {shown}{f' and {rest} more' if rest > 0 else ''}."
    if not finite:
        return "Its ranks lack gradients."
    real = real or finite
    worst, name = max(real, key=lambda row: row[0].rel_diff)
    return f"It measured {worst.rel_diff:.3g} relative difference in {name}."
