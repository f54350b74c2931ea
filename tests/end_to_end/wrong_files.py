"""Target files that are wrong, one way each. Their messages: wrong_files.txt."""

from __future__ import annotations

from dataclasses import dataclass

HEAD = """\
import torch
from torch import nn
"""
MODEL = """\
def model():
    torch.manual_seed(0)
    return nn.Linear(4, 2)
"""
BATCH = """\
def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 4, generator=generator), torch.arange(8) % 2
"""
LOSS = """\
def loss(output, target):
    return nn.functional.cross_entropy(output, target)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A target file, and the options it is checked with."""

    source: str
    world_sizes: tuple[int, ...] = (2,)
    names: tuple[tuple[str, str], ...] = ()


def target(
    *,
    head: str = HEAD,
    model: str = MODEL,
    batch: str = BATCH,
    loss: str = LOSS,
    end: str = "",
) -> str:
    """Returns a good target with some parts replaced."""
    return "\n".join(part for part in (head, model, batch, loss, end) if part)


CASES: dict[str, Case] = {
    "no-model": Case(source=target(model="class Net(nn.Linear):\n    pass\n")),
    "script": Case(
        source=target(
            loss="def main():\n"
            "    torch.distributed.init_process_group('gloo')\n"
            "    nn.functional.mse_loss(model()(batch()[0]), batch()[1]).backward()\n",
            end="if __name__ == '__main__':\n    main()\n",
        )
    ),
    "script-that-starts": Case(
        source=target(end="torch.distributed.init_process_group('gloo')\n")
    ),
    "script-that-makes-a-group": Case(
        source=target(
            end="torch.distributed.init_process_group('gloo', rank=0, world_size=1,\n"
            "    store=torch.distributed.HashStore())\n"
        )
    ),
    "no-model-empty-file": Case(source=""),
    "no-batch": Case(source=target(batch="def data():\n    return None\n")),
    "no-loss": Case(source=target(loss="criterion = nn.CrossEntropyLoss()\n")),
    "no-loss-pair-value": Case(
        source=target(batch="batch = (torch.ones(8, 4), torch.ones(8))\n", loss="")
    ),
    "no-loss-dict-without-loss": Case(
        source=target(
            batch="def batch():\n    return {'input': torch.ones(8, 4)}\n", loss=""
        )
    ),
    "chosen-name-missing": Case(source=target(), names=(("loss", "criterion"),)),
    "model-kind": Case(source=target(model="model = 3\n")),
    "batch-of-samples": Case(
        source=target(batch="def batch():\n    return [(torch.ones(4), 1)] * 8\n")
    ),
    "collate-kind": Case(
        source=target(end="def batch():\n    return [(torch.ones(4), 1)] * 8\n")
        + "def collate(samples):\n    return torch.stack([x for x, _ in samples])\n"
    ),
    "collate-draws": Case(
        source=target(end="def batch():\n    return [torch.ones(4)] * 8\n")
        + "def collate(samples):\n"
        "    return torch.rand(len(samples), 4), torch.arange(len(samples)) % 2\n"
    ),
    "collate-missing": Case(source=target(), names=(("collate", "pad"),)),
    "batch-kind-name": Case(source=target(batch="batch = 'data.pt'\n")),
    "batch-is-tensor": Case(source=target(batch="batch = torch.ones(8, 4)\n")),
    "loss-kind": Case(source=target(loss="loss = 'mse'\n")),
    "loss-is-class": Case(source=target(loss="loss = nn.CrossEntropyLoss\n")),
    "optimizer-kind-name": Case(source=target(end="optimizer = 'adam'\n")),
    "model-no-module": Case(source=target(model="def model():\n    return [1, 2]\n")),
    "model-needs-arguments": Case(source=target(model="model = nn.Linear\n")),
    "syntax-error": Case(source=target(loss="def loss(output, target:\n    pass\n")),
    "missing-package": Case(source=target(head=HEAD + "import no_such_package.part\n")),
    "missing-name-in-package": Case(
        source=target(head=HEAD + "from time import no_such_name\n")
    ),
    "raises-at-import": Case(
        source=target(end="raise ValueError('no data in /data')\n")
    ),
    "raises-at-import-below": Case(source=target(end="import json\njson.loads('')\n")),
    "exits-at-import": Case(
        source=target(end="import sys\nsys.exit('usage: train.py DATA')\n")
    ),
    "exits-at-import-0": Case(source=target(end="import sys\nsys.exit()\n")),
    "argparse-at-import": Case(
        source=target(
            end="import argparse\np = argparse.ArgumentParser()\n"
            "p.add_argument('--data', required=True)\nargs = p.parse_args([])\n"
        )
    ),
    "loss-not-scalar": Case(
        source=target(loss="def loss(output, target):\n    return output.sum(1)\n")
    ),
    "loss-is-float": Case(
        source=target(
            loss="def loss(output, target):\n    return output.mean().item()\n"
        )
    ),
    "loss-is-none": Case(
        source=target(loss="def loss(output, target):\n    output.mean()\n")
    ),
    "loss-no-gradient": Case(
        source=target(
            loss="def loss(output, target):\n    return output.detach().mean()\n"
        )
    ),
    "loss-takes-one": Case(
        source=target(loss="def loss(output):\n    return output.mean()\n")
    ),
    "batch-dim0": Case(
        source=target(
            batch="def batch():\n    return torch.ones(8, 4), torch.ones(6)\n"
        )
    ),
    "batch-dim0-of-each": Case(
        source=target(
            batch="def batch():\n"
            "    clouds = [torch.ones(n, 4) for n in (5, 9, 9, 7, 9, 9, 6)]\n"
            "    return clouds, torch.ones(6)\n"
        )
    ),
    "batch-empty": Case(
        source=target(
            batch="def batch():\n    return torch.ones(0, 4), torch.ones(0)\n"
        )
    ),
    "batch-no-tensor": Case(
        source=target(batch="def batch():\n    return [1.0, 2.0], [0, 1]\n")
    ),
    "batch-of-arrays": Case(
        source=target(
            head="import numpy as np\n" + HEAD,
            batch="def batch():\n    return np.ones((8, 4)), np.arange(8) % 2\n",
        )
    ),
    "batch-object": Case(
        source=target(
            batch="class Nested:\n"
            "    def __init__(self, tensors):\n        self.tensors = tensors\n"
            "def batch():\n    return Nested(torch.ones(8, 4)), torch.ones(8)\n"
        )
    ),
    "batch-array": Case(
        source=target(
            batch="import numpy as np\n"
            "def batch():\n"
            "    return torch.ones(8, 4), {'y': torch.ones(8), 'w': np.ones(8)}\n"
        )
    ),
    "batch-texts": Case(
        source=target(
            batch="def batch():\n"
            "    return (torch.ones(8, 4), ['a text'] * 8), torch.ones(8)\n"
        )
    ),
    "batch-lengths": Case(
        source=target(
            model="class Net(nn.Linear):\n"
            "    def forward(self, x, lengths):\n"
            "        lengths = torch.as_tensor(lengths)[:len(x), None]\n"
            "        return super().forward(x * (torch.arange(4) < lengths))\n"
            "def model():\n    torch.manual_seed(0)\n    return Net(4, 2)\n",
            batch="def batch():\n"
            "    generator = torch.Generator().manual_seed(1)\n"
            "    x = torch.randn(8, 4, generator=generator)\n"
            "    return (x, [1, 2, 3, 4, 4, 3, 2, 2]), torch.arange(8) % 2\n",
        )
    ),
    "batch-object-later": Case(
        source=target(
            batch="import numpy as np\n"
            "def batch(step):\n"
            "    y = torch.zeros(8, dtype=torch.long)\n"
            "    return torch.ones(8, 4), y if step == 0 else [y, np.ones(8)]\n"
        )
    ),
    "batch-not-pair": Case(
        source=target(batch="def batch():\n    return torch.ones(8, 4)\n")
    ),
    "batch-triple": Case(
        source=target(
            batch="def batch():\n    x = torch.ones(8, 4)\n    return x, x, x\n"
        )
    ),
    "batch-none": Case(source=target(batch="def batch():\n    pass\n")),
    "batch-raises": Case(
        source=target(batch="def batch():\n    return open('/no/such/file')\n")
    ),
    "batch-one-sample": Case(
        source=target(
            batch="def batch():\n"
            "    return torch.ones(1, 4), torch.ones(1, dtype=torch.long)\n"
        ),
        world_sizes=(),
    ),
    "unseeded": Case(source=target(model="def model():\n    return nn.Linear(4, 2)\n")),
    "unseeded-noise": Case(
        source=target(
            model="import os\ndef model():\n"
            "    torch.manual_seed(int.from_bytes(os.urandom(4), 'big'))\n"
            "    return nn.Linear(4, 2)\n"
        )
    ),
    "batch-unseeded": Case(
        source=target(
            batch="import numpy as np\ndef batch():\n"
            "    x = np.random.default_rng().normal(size=(8, 4))\n"
            "    return torch.tensor(x), torch.arange(8) % 2\n"
        )
    ),
    "batch-unseeded-tensor": Case(
        source=target(
            batch="import numpy as np\ndef batch():\n"
            "    return torch.tensor(np.random.default_rng().normal(size=(8, 4)))\n",
            loss="",
            end="def train_step(model, optimizer, batch):\n"
            "    loss = model(batch).square().mean()\n"
            "    optimizer.zero_grad()\n"
            "    loss.backward()\n"
            "    optimizer.step()\n"
            "    return loss\n",
        )
    ),
    "empty-model": Case(source=target(model="def model():\n    return nn.ReLU()\n")),
    "frozen-model": Case(
        source=target(
            model="def model():\n    torch.manual_seed(0)\n"
            "    return nn.Linear(4, 2).requires_grad_(False)\n"
        )
    ),
    "not-finite": Case(
        source=target(
            loss="def loss(output, target):\n    return (output * torch.nan).mean()\n"
        )
    ),
    "not-finite-batch": Case(
        source=target(
            batch="def batch():\n"
            "    x = torch.randn(8, 4)\n"
            "    x[3, 1] = torch.nan\n"
            "    return x, torch.arange(8) % 2\n"
        )
    ),
    "not-finite-later": Case(
        source=target(
            loss="def loss(output, target):\n    return output.pow(4).sum().exp()\n",
            end="def optimizer(params):\n    return torch.optim.SGD(params, lr=1e6)\n",
        )
    ),
    "optimizer-kind": Case(
        source=target(end="def optimizer(params):\n    return 'adam'\n")
    ),
    "optimizer-closure": Case(
        source=target(
            end="def optimizer(params):\n    return torch.optim.LBFGS(params)\n"
        )
    ),
    "optimizer-asks-for-closure": Case(
        source=target(
            end="class Sharp(torch.optim.SGD):\n"
            "    def step(self, closure=None):\n"
            "        assert closure is not None, 'Sharp requires a closure'\n"
            "optimizer = Sharp\n"
        )
    ),
    "optimizer-raises": Case(
        source=target(
            end="def optimizer(params):\n    return torch.optim.SGD(params, lr=-1)\n"
        )
    ),
    "wrap-sharded": Case(
        source=target(
            end="def wrap(model):\n"
            "    from torch.distributed.device_mesh import init_device_mesh\n"
            "    from torch.distributed.fsdp import fully_shard\n"
            # Where there are GPUs, it would take them.
            "    size = torch.distributed.get_world_size()\n"
            "    return fully_shard(model, mesh=init_device_mesh('cpu', (size,)))\n"
        )
    ),
    "wrap-sharded-on-gpus-alone": Case(
        source=target(
            end="def wrap(model):\n"
            "    from torch.distributed.fsdp import FullyShardedDataParallel\n"
            "    return FullyShardedDataParallel(model)\n"
        )
    ),
    "wrap-kind": Case(source=target(end="def wrap(model):\n    model.train()\n")),
    "model-on-a-gpu": Case(
        source=target(
            # What a torch without CUDA says to .cuda().
            model="def model():\n"
            "    raise AssertionError('Torch not compiled with CUDA enabled')\n"
        )
    ),
    "model-raises": Case(
        source=target(
            model="class Net(nn.Linear):\n    def forward(self, x):\n"
            "        raise RuntimeError('bad shape')\n\n"
            "def model():\n    torch.manual_seed(0)\n    return Net(4, 2)\n"
        )
    ),
    "model-shape": Case(
        source=target(
            model="def model():\n    torch.manual_seed(0)\n    return nn.Linear(5, 2)\n"
        )
    ),
    "train-step-kind": Case(source=target(loss="train_step = 1\n")),
    "world-size": Case(source=target(), world_sizes=(2, 16)),
    "setting-world-sizes": Case(source=target(end="world_sizes = '2,x'\n")),
    "setting-world-sizes-zero": Case(source=target(end="world_sizes = [2, 0]\n")),
    "setting-tolerance": Case(source=target(end="tolerance = 'small'\n")),
    "setting-accept": Case(source=target(end="accept = ['everything']\n")),
}
