#!/usr/bin/env bash
# ddpcheck under torchrun on two hosts: network namespaces with a cable between them, and
# a /dev/shm and /tmp of their own, so that no file is shared but the target's folder.
#
#     sudo benchmarks/two_hosts.sh [TARGET] [OPTIONS]
#
# Then the same group without torchrun's store, with a rank on the second host that
# raises, leaves, is killed or hangs. Prints exit codes; both hosts must have the same.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
export PYTHONPATH=$root
work=$(mktemp -d "$root/.two-hosts.XXXXXX")
hosts=(ddpcheck-a ddpcheck-b)
clean() {
  rm -rf "$work"
  for host in "${hosts[@]}"; do ip netns del "$host" 2>/dev/null || true; done
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

for host in "${hosts[@]}"; do ip netns add "$host"; done
ip link add cable-a netns "${hosts[0]}" type veth peer name cable-b netns "${hosts[1]}"
for i in 0 1; do
  end=(cable-a cable-b)
  ip -n "${hosts[i]}" addr add "10.77.0.$((i + 1))/24" dev "${end[i]}"
  ip -n "${hosts[i]}" link set "${end[i]}" up
  ip -n "${hosts[i]}" link set lo up
done

on() { # HOST COMMAND...: in its network, with memory and temporary files of its own
  local i=$1 end=(cable-a cable-b)
  shift
  ip netns exec "${hosts[i]}" unshare --mount --uts bash -c '
    hostname "$0"; mount -t tmpfs none /dev/shm; mkdir -p /dev/shm/tmp
    export TMPDIR=/dev/shm/tmp GLOO_SOCKET_IFNAME='"${end[i]}"'
    "$@"; code=$?
    left=$(ls /dev/shm | grep ddpcheck || true)
    [ -z "$left" ] || echo "LEFT BEHIND: $left" >&2
    exit $code' "host$i" "$@"
}

both() { # LABEL: runs `command 0` and `command 1` side by side, prints codes
  local codes=() pids=()
  for i in 0 1; do command "$i" >"$work/out$i" 2>"$work/err$i" & pids+=($!); done
  for pid in "${pids[@]}"; do wait "$pid" && codes+=(0) || codes+=($?); done
  echo "$1: exit codes ${codes[*]}, output of the second host: $(wc -c <"$work/out1") bytes"
  grep -h "LEFT BEHIND" "$work"/err* || true
}

target=$(realpath "${1:-$root/examples/digits_conv.py}")
shift || true
options=("$@")
cd "$work"
command() {
  on "$1" "$python" -m torch.distributed.run --nnodes 2 --nproc-per-node 2 --node-rank "$1" \
    --master-addr 10.77.0.1 --master-port 29511 -m ddpcheck "$target" "${options[@]}"
}
both "torchrun, 2 hosts x 2 ranks"
cat out0
grep -h exitcode err0 err1 || true

for how in raise os._exit kill hang; do
  cat >"$how.py" <<EOF
import os, signal, time
import torch
import torch.distributed as dist
from torch import nn
torch.manual_seed(0)
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.arange(8) % 3
loss = nn.CrossEntropyLoss()
class Last(nn.Linear):
    def forward(self, x):
        if dist.is_initialized() and dist.get_rank() == dist.get_world_size() - 1:
            {"raise": lambda: 1 / 0, "os._exit": lambda: os._exit(7),
             "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
             "hang": lambda: time.sleep(600)}["$how"]()
        return super().forward(x)
model = Last(4, 3)
EOF
  command() {
    on "$1" env RANK="$1" WORLD_SIZE=2 MASTER_ADDR=10.77.0.1 MASTER_PORT=29512 \
      "$python" -m ddpcheck "$how.py" --modes ddp --timeout-s 5
  }
  both "no launcher's store, a rank that ends by $how"
  tail -n 1 out0
  cat err0 err1
done
