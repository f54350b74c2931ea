"""The pages of usage errors, for --explain: one per slug, first line a summary."""

from __future__ import annotations

PAGES = {
    "environment-import": """
The environment cannot import torch or ddpcheck itself.

Nothing of the target has run yet. Run the command that the message gives: it shows
the whole traceback. A torch that does not fit numpy or the driver is the usual cause.
""",
    "environment-no-gpu": """
--device cuda needs a GPU that torch can use.

`python -c "import torch; print(torch.cuda.device_count())"` must print 1 or more: a
torch built for CUDA, a driver, and CUDA_VISIBLE_DEVICES not empty. With --device cpu
the same check runs without one.
""",
    "environment-no-space": """
Neither shared memory nor the temporary folder has room for what one process computes.

Every step's gradients, weights and buffers are kept for the ranks to compare theirs
with, in /dev/shm or, where that is too small, where TMPDIR points. Containers have 64
MB of shared memory unless started with more (docker run --shm-size=2g; in Kubernetes an
emptyDir of medium Memory at /dev/shm).
""",
    "explain-unknown": """
--explain was given a slug that is neither a rule's nor an error's.

Slugs of findings are family/name (loss/local-normalizer), those of errors have no
slash (target-no-loss). `ddpcheck --rules` lists all of them.
""",
    "group-differs": """
The processes of a given group do not see the same file, ddpcheck or torch.

All of them import the target by the same absolute path, and rank 0 compares what they
imported before anything is run. Keep the file in a folder that all machines share, and
use one environment: the paths and versions that differ are in the message.
""",
    "group-world-size": """
Under torchrun the world size is that of the group, and cannot be chosen.

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT name a group of processes, on one machine
or on several. ddpcheck then starts no ranks of its own: each process of the group holds
one rank. Rank 0 writes the report; the others are silent and end with its exit code.

    torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d \\
        --rdzv-endpoint HOST:29500 -m ddpcheck mymodel.py

torchrun itself ends with 1 whenever a rank's exit code is not 0; the rank's own stands
in what it prints. The same under SLURM, in a job of one task per machine:

    #SBATCH --nodes 2 --ntasks-per-node 1 --gpus-per-node 4
    head=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -1)
    srun torchrun --nnodes $SLURM_NNODES --nproc-per-node 4 --rdzv-backend c10d \\
        --rdzv-id $SLURM_JOB_ID --rdzv-endpoint $head:29500 \\
        -m ddpcheck mymodel.py --device cuda

Without torchrun, one task per rank, srun's variables become those of the group:

    export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -1)
    export MASTER_PORT=29500
    srun bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID
        LOCAL_WORLD_SIZE=$SLURM_NTASKS_PER_NODE exec ddpcheck mymodel.py'

gloo finds its network by the host's name, or by GLOO_SOCKET_IFNAME. A shell that still
has these variables from another job makes ddpcheck wait for processes that do not come:
`env -u RANK ddpcheck mymodel.py` runs it alone.
""",
    "option-max-memory": """
A run needs more memory than there is, or than --max-memory allows.

The estimate counts tensors: parameters, gradients, DDP's buckets, optimizer state, and
the recorded steps of one process, where no disk takes them. Activations and the batch
are not in it.
Without --max-memory the limit is what the machine, or its container, has available
when the check begins; of the default world sizes those that need more than 80 % of it
are left out, and listed. Fewer ranks (--world-sizes), fewer --steps, a smaller model of
the same kind, or more memory will do.
""",
    "option-suite": """
--suite runs a matrix of its own and takes few options.

--world-sizes (of 1, 2, 3, 4, 8 and 16), --modes (of dp and ddp), --batch-norm and
--loss choose cells; --dtype (float64 or float32), --device, --tolerance and --timeout-s
set them. It prints a table, with --quiet the failures alone. Leave the others out.
""",
    "option-usage": """
The command line is not one that ddpcheck knows.

One TARGET, or one other way in (--demo, --suite, --init, --explain, --rules,
--render, --version), and options by their full names: `ddpcheck --help` shows them.

An option without effect is refused. --render takes --format, and on a terminal -q or
-v; --demo takes --report-dir, -q and -v; for --suite see option-suite; the others take
none. Several targets, all in one: pytest --ddpcheck a.py b.py

An option and its value are two arguments, or one with =: --steps 2, --steps=2. Quoted
together, "--steps 2", they are one argument with a blank in its name.
""",
    "option-value": """
A setting has a value that it cannot have.

The same values are allowed on the command line, in [tool.ddpcheck] of pyproject.toml
and, but for loss and report_dir, as keyword arguments in Python. A target file sets
world_sizes, simulate, tolerance and accept alone: the other names are common ones of
training scripts, and mean something else there.

    world_sizes   [2, 4, 8]                    or --world-sizes 2,4,8
    modes         ["dp", "ddp"]
    simulate      [256, 1024]                  or --simulate 256,1024
    batch_norm    ["asis", "local", "sync", "frozen"]
    loss          ["asis", "mean", "sum", "masked", "iou"]
    noise         "asis" or "sample"
    steps         3
    dtype         "auto", "float64", "float32", "bfloat16" or "float16"
    device        "auto", "cpu" or "cuda"
    tolerance     1e-9, relative; from 1e-15 to 0.1
    accept        {"norm/local-batch-stats" = "why this is fine"}
    fix           true or false                or --no-fix
    timeout_s     60
    max_memory    16, GiB
    seed          0
    report_dir    "reports"

timeout_s bounds the import of the target and, where it is given, every run, by the
clock. A run that it cuts off is not checked where one process was so slow, or the
machine so busy, that ranks may have needed longer; else they hang. Where it is not
given, ranks that are slow or wait for a core get longer than 60 s.

DDPCHECK_MAX_RANKS, of the environment, is how many ranks run at a time under pytest.
""",
    "option-world-size": """
A world size is larger than the batch.

Every rank needs one sample at least, a simulated one too, so the largest world size is
the number of samples that batch() returns. Use smaller --world-sizes and --simulate, or
a larger batch.
""",
    "settings-unknown": """
[tool.ddpcheck] holds a setting that ddpcheck does not have.

A misspelt setting would be one without effect, so it is an error. The names are those
of the options, with _ or -: see `ddpcheck --explain option-value`.
""",
    "target-batch-dim0": """
The tensors of the batch have different lengths.

Data parallelism cuts every tensor along dimension 0, so dimension 0 of each must be
the sample. What belongs to no sample (class weights, a mask of shape (T, T)) does not
go into the batch: make it a global of the file, or a buffer of the model.

Samples of several sizes (boxes, words, point clouds) stay samples: batch() returns the
list of them, and collate makes a batch of some. Every rank collates its own, one
process all. What collate pads to the longest sample has another shape on ranks: outputs
of such shapes are not compared, gradients are.

    def batch():
        return [(image, boxes) for image, boxes in data]  # the global batch

    def collate(samples):
        images, boxes = zip(*samples)
        rows = [nn.functional.pad(b, (1, 0), value=i) for i, b in enumerate(boxes)]
        return torch.stack(images), torch.cat(rows)

The same samples must make the same batch each time: random numbers are drawn in
batch(). A list of two tensors is (inputs, targets), not two samples.
""",
    "target-batch-empty": """
batch() returns no tensor, or tensors without rows.

batch() returns the global batch itself, (inputs, targets) as tensors; a data loader,
a list of numbers or a numpy array is not cut into shards.
""",
    "target-batch-kind": """
batch() must return a pair: what the model takes, and what the loss compares.

    def batch():
        return inputs, targets

inputs may be a tensor (model(x)), a tuple (model(*x)) or a dict (model(**x)); targets
any structure of tensors. So must collate(samples), where batch() returns a list of
samples. Where there is no `loss`, batch() may return one dict, and
model(**batch).loss is used. Two inputs: return (a, b), targets
""",
    "target-batch-small": """
The batch has one sample: there is nothing to divide among ranks.

Return at least 2 samples from batch(); 8 or 16 let all default world sizes run.
""",
    "target-batch-undivided": """
The batch holds samples in something other than tensors.

Every tensor in tuples, lists, dicts and dataclasses is cut along dimension 0; an object
that holds tensors (a graph batch, a nested tensor, a numpy array), or a list with one
text or number per sample, goes to every rank whole, and ranks would train on samples of
others. Pad and stack what is ragged, return the list of samples beside a collate
(ddpcheck --explain target-batch-dim0), or let the batch hold sample numbers:

    samples = [...]                              # graphs, boxes, texts
    class Net(nn.Module):
        def forward(self, rows):                 # the rank's rows of torch.arange(16)
            return self.net(collate([samples[i] for i in rows]))
    batch = torch.arange(16), labels

What is no sample (a configuration, a graph that all samples share) is closed over: a
global of the file.
""",
    "target-batch-unseeded": """
Two calls of batch() make other data, in two processes that are alike.

One process and all ranks must have the same global batch, or every difference means
nothing. torch, numpy and random are seeded for every call; a generator of the file's
own (np.random.default_rng()) is not, nor is what goes by the time or a set's order:

    rng = np.random.default_rng(0)

collate() draws nothing: ranks call it on their own samples, one process on all.
""",
    "target-empty-model": """
model() returns a model in which nothing is trained.

No parameter has requires_grad=True, so there is no gradient to compare. Return the
model as training has it: unfrozen, with the head that is trained.
""",
    "target-import": """
The target file raises while it is imported, or starts what only a script does.

It is imported like any module, its own folder first on sys.path, that in which ddpcheck
was started last, __name__ being the file's name. What only a script does (argparse,
init_process_group, training) belongs under

    if __name__ == "__main__":

The line that is named is the innermost one outside of torch and of Python itself, in
whatever module it is; -v shows the whole stack.
""",
    "target-loss-gradient": """
The loss does not depend on the model's parameters.

Something between model and loss cuts the graph: .detach(), .item(), .data, numpy,
argmax, torch.no_grad(), or a new tensor made of the values of the old one.
""",
    "target-loss-scalar": """
The loss must be a tensor of one element.

    def loss(output, target):
        return functional.cross_entropy(output, target)

A loss per sample is reduced by .mean(), or by a sum over a count. A loss that returns
None lacks a `return`; a float has lost its gradient.
""",
    "target-missing-file": """
TARGET is not a Python file.

TARGET is the path of a Python file; file.py:Name picks its model. Modules
(package.module), folders and notebooks are not taken; `jupyter nbconvert --to script`
makes a file of a notebook. ddpcheck --init writes a template.
""",
    "target-model-kind": """
model must make a torch.nn.Module, without arguments.

    def model():
        torch.manual_seed(0)
        return Net(width=64)

A class that needs no arguments, or a module itself, will do too. A module is copied
for every rank.
""",
    "target-name-kind": """
One of the contract's names is not what it must be.

model, loss, optimizer, wrap and train_step are callables; model may be a module, and
batch may be the pair itself. A configuration value of the same name is the usual
cause: choose another function with --model-fn, --loss-fn and so on.
""",
    "target-no-batch": """
The file defines no `batch`.

    def batch():
        return inputs, targets    # the global batch, dimension 0 is the sample

Or name what plays its part: ddpcheck mymodel.py --batch-fn make_data
""",
    "target-no-collate": """
The file defines no function of the name that --collate-fn gives.

    def collate(samples):
        images, labels = zip(*samples)
        return torch.stack(images), torch.stack(labels)

It is called where batch() returns a list of samples: by every rank on its own, by one
process on all of them.
""",
    "target-no-loss": """
The file defines no `loss`.

    def loss(output, target):
        return functional.cross_entropy(output, target)

Or name what plays its part: ddpcheck mymodel.py --loss-fn criterion. In Python it is
the third argument, ddpcheck.check(model, batch, criterion), that was left out. None is
needed where `train_step` does the whole step, or where batch() returns a dict and the
model's output has a .loss.
""",
    "target-no-model": """
The file defines no `model`.

    def model():
        torch.manual_seed(0)
        return Net()

Or name what plays its part: ddpcheck mymodel.py:Net
""",
    "target-no-optimizer": """
The name given by --optimizer-fn is not in the file.

    def optimizer(params):
        return torch.optim.AdamW(params, lr=1e-3)

Without the option and without `optimizer`, SGD with learning rate 0.1 is used.
""",
    "target-no-train-step": """
The name given by --train-step-fn is not in the file.

    def train_step(model, optimizer, batch):
        inputs, targets = batch
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        optimizer.step()
""",
    "target-no-wrap": """
The name given by --wrap-fn is not in the file.

    def wrap(model):
        return DistributedDataParallel(model, static_graph=True)

Without the option and without `wrap`, DistributedDataParallel(model) is used.
""",
    "target-not-finite": """
One process on the global batch gets NaN or infinity.

Two runs that are both NaN say nothing about each other, so this is not compared. Make
one-process training work for the three steps first: a smaller learning rate, scaled
inputs, or --steps 1.
""",
    "target-pickle": """
A target made of objects cannot be sent to the processes that run it.

What a test gives to the fixture, or a program to ddpcheck.check, is pickled with
cloudpickle: functions, lambdas, closures and classes all can be. Locks, open files,
generators and handles of devices cannot. Make them where they are used, inside
model(), batch() or loss(), or write the target to a file and give its path.
""",
    "target-optimizer-closure": """
The optimizer calls a closure (LBFGS), and the file has no train_step that passes one.

On ranks the closure must return the same number everywhere: by its own loss each rank
would search along the line by itself.

    def train_step(model, optimizer, batch):
        inputs, targets = batch

        def closure():
            optimizer.zero_grad()
            value = loss(model(inputs), targets)
            value.backward()
            value = value.detach().clone()
            if torch.distributed.is_initialized():  # one process has no group
                torch.distributed.all_reduce(value)
                value /= torch.distributed.get_world_size()
            return value

        optimizer.step(closure)

The gradient that is compared is that of the closure's last call, and the weights are
those after the step.
""",
    "target-optimizer-kind": """
optimizer(params) must return the optimizer.

    def optimizer(params):
        return torch.optim.AdamW(params, lr=1e-3)

Anything with step() and zero_grad() is taken. None: a `return` is missing.
""",
    "target-raises": """
The target raises while one process trains it on the global batch.

Nothing is distributed here: no process group, no DistributedDataParallel. The line
that is named is the innermost one outside of torch, with the line of yours that called
it where it is a library's; -v shows the whole stack. A target that works only on ranks
must ask torch.distributed.is_initialized() before it uses a collective.
""",
    "target-script": """
The file is a training script, and no target.

A file that lacks `model` or `batch` and calls functions at its top level would train
when it is imported: it is not executed. What else starts distributed training is no
target either.

A target says what is trained; ddpcheck starts the ranks, makes their process group,
shards the batch and wraps the model. Keep the script as it is, its start under
`if __name__ == "__main__":`, and write a file beside it:

    from train import Net, criterion  # the script's own

    def model():
        torch.manual_seed(0)
        return Net()

    def batch():
        return next(iter(loader(batch_size=16)))  # the global batch

    def train_step(model, optimizer, batch):  # what its loop does with one batch
        inputs, targets = batch
        optimizer.zero_grad()
        criterion(model(inputs), targets).backward()
        optimizer.step()
""",
    "target-starts-cuda": """
Importing the target file initialises CUDA.

Ranks are forks of one process that has imported the file, and CUDA does not survive a
fork. Make tensors in `model` and `batch`, on the CPU: --device cuda moves model and
batch to the rank's GPU. What the loss needs besides goes where its inputs are:

    weight = torch.tensor([1.0, 3.0], device=output.device)
""",
    "target-unseeded": """
Two calls of model() make models with different weights.

The one-process run and rank 0 must start from the same weights, or every difference
means nothing. Seed at the start of model():

    def model():
        torch.manual_seed(0)
        return Net()

A model that loads a checkpoint, or is given as an instance, needs no seed. Weights that
are not trained may be memory that nobody has initialised: all runs begin with one's.

Rounding is no missing seed: a solver may return other last digits in another process.
Where the weights differ by less than the square root of their dtype's epsilon, relative
to the largest of the tensor, a warning states it and all runs begin with one's.
""",
    "target-wrap-kind": """
wrap(model) must return what the rank trains.

    def wrap(model):
        return DistributedDataParallel(model, find_unused_parameters=True)

None: a `return` is missing.
""",
    "target-wrap-sharded": """
wrap(model) leaves a rank a part of each parameter: FSDP, fully_shard, tensor parallel.

ddpcheck compares whole gradients and weights with those of one process. What makes
sharded training wrong, a loss or a norm that depends on the shard of the batch, makes
DDP wrong in the same way:

    def wrap(model):
        return DistributedDataParallel(model)
""",
}
