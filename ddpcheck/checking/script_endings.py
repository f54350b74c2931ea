"""How the processes of a script ended when they were recorded, and what that means.

A script that has trained the steps which are asked for may end as it likes: it may
raise, exit with a code, wait for ever. The check stops it before that. Ranks that end
as the single process does are no fault.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddpcheck.errors import frames
from ddpcheck.errors.problem import Problem, UsageError, cut
from ddpcheck.errors.raised import lacks_cuda, wants_cuda
from ddpcheck.ranks.budget import cores
from ddpcheck.ranks.made import Made, Refused
from ddpcheck.ranks.messages import Outcome, Raised
from ddpcheck.report.data import Fault, NotCompared
from ddpcheck.run.modes.ddp import DDP
from ddpcheck.run.script.events import Updated
from ddpcheck.run.session import assemble
from ddpcheck.run.session.session import CannotCheckError, describe_exit
from ddpcheck.run.spec import ReferenceResult, RunOutcome, RunSpec
from ddpcheck.target.script import USAGE_CODE, OtherNumberError, Script

_REFUSED = "WriteRefusedError"
_MEANT = ("SystemExit", "ScriptInterrupt")  # an end that a script chooses
_LAST_LINES = 3
# A rank hangs without a doubt after so many times what a single process takes, and
# so many seconds: it may sleep once, or wait for a disk.
_NO_DOUBT, _LEAST_S = 5.0, 20.0
_PATIENCE = 2.0  # as many times its longest update may a rank take for one
# A usage error of ours that a process raised, as text.
_OWN = re.compile(
    r"ddpcheck: (?P<message>.*) \[(?P<slug>script-missing-file|script-fails)\]\n"
    r"  expected   (?P<expected>.*)\n  found      (?P<found>.*)\n"
    r"  fix        (?P<fix>.*)"
)


def steps(outcome: Outcome) -> int:
    """Returns how many updates a process has recorded."""
    return sum(isinstance(event, Updated) for event in outcome.progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endings:
    """How the ranks and the single process of a script ended.

    `asked`: the steps to check. `made`: what the processes did to files. `seconds`:
    that the ranks took, and `single_s` the single process.
    """

    script: Script
    ranks: Sequence[Outcome]
    single: Outcome
    asked: int
    made: Made
    seconds: float
    single_s: float

    def check(self) -> None:
        """Raises where the script does not train as a single process.

        Raises:
            UsageError: script-fails, script-writes.
            CannotCheckError: it hangs, or kills its process.
        """
        self._check_number()
        short = [o for o in (self.single, *self.ranks) if steps(o) < self.asked]
        refused = next((o.raised for o in short if _is_refused(o.raised)), None)
        if refused is not None:
            raise self._writes(refused)
        outcome, done = self.single, steps(self.single)
        if outcome.kind == "raised":
            assert outcome.raised is not None
            is_meant = outcome.raised.type_name in _MEANT
            if done < self.asked and not (is_meant and done):
                raise self._fails(outcome.raised)
        elif outcome.kind == "died" and not done:
            message = (
                f"{self.script.name} ends its process when it runs as a single process"
            )
            raise CannotCheckError(message, outcome.stack or outcome.stderr)
        elif outcome.kind != "done" and not done:
            message = f"{self.script.name} hangs as a single process"
            message += frames.in_users(outcome.stack)
            raise CannotCheckError(
                message + "; if it needs longer: --timeout-s", outcome.stack
            )
        self._check_cuda()

    def faults(self) -> list[Fault]:
        """Returns the ranks that raised, died or hung where the single process did not.

        Ranks that end as the single process does, and those that were stopped when
        these had ended, are left out. So are those that may be slow, and those that
        wait for them.
        """
        if self._end_alike() or self.slow():
            return []
        outcome = RunOutcome(
            spec=RunSpec(mode=DDP.name, world_size=len(self.ranks)),
            reference=ReferenceResult(),
            ranks=list(self.ranks),
        )
        return [
            dataclasses.replace(fault, step=self._step(fault))
            for fault in assemble.faults_of(outcome)
        ]

    def slow(self) -> str:
        """Returns which rank may be no more than slow, and where it was; "" for none.

        It was at work when the time limit came: it did not wait for other ranks.
        """
        may_be = all(o.kind in ("done", "stopped", "hung") for o in self.ranks)
        if not may_be or self._end_alike():
            return ""
        for rank in self.ranks:
            is_at_work = rank.kind == "hung" and not frames.exchanges(rank.stack)
            if is_at_work and self._may_be_slow(rank):
                return (
                    f"rank {rank.rank} was still at work at the time limit"
                    f"{frames.in_users(rank.stack)}; if it needs longer: --timeout-s"
                )
        return ""

    @property
    def are_regular(self) -> bool:
        """Whether the ranks and the single process came to the script's end."""
        every = (*self.ranks, self.single)
        return all(one.kind == "done" and one.value.ended for one in every)

    def left_out(self) -> list[NotCompared]:
        """Returns what the script does after its last update that is compared."""
        if self.single.kind == "done":
            return []
        done = min(self.asked, steps(self.single))
        return [NotCompared(what=f"what follows update {done}", why=self._end())]

    def warnings(self) -> list[str]:
        """Returns a warning on what the script was not allowed to do."""
        if not self.made.refused:
            return []
        told = cut([self._told(one) for one in self.made.refused])
        return [f"the script was not allowed to {told}; --allow-writes allows it"]

    def _may_be_slow(self, rank: Outcome) -> bool:
        """Returns whether a rank had little time, or has made an update of late."""
        turns = max(1.0, len(self.ranks) / cores())
        if self.seconds < max(_LEAST_S, _NO_DOUBT * turns * self.single_s):
            return True
        ends = [0.0, *(e.at for e in rank.progress if isinstance(e, Updated))]
        longest = max((two - one for one, two in itertools.pairwise(ends)), default=0.0)
        return self.seconds - ends[-1] < _PATIENCE * longest

    def _step(self, fault: Fault) -> int | None:
        """Returns the step (from 0) in which a rank raised, or that it had ended."""
        done = steps(self.ranks[fault.rank])
        if fault.kind == "raised":
            return done
        return done - 1 if done else None

    def _end_alike(self) -> bool:
        """Returns whether all ranks that failed did as the single process."""
        failed = [o for o in self.ranks if o.kind not in ("done", "stopped")]
        return self.single.kind != "done" and all(map(self._is_alike, failed))

    def _is_alike(self, rank: Outcome) -> bool:
        """Returns whether a rank ended as the single process did."""
        one, two = self.single, rank
        if one.raised is not None and two.raised is not None:
            return one.raised.type_name == two.raised.type_name
        if one.kind == two.kind == "died":
            return one.exit_code == two.exit_code
        places = [frames.users(o.stack) for o in (one, two)]
        waited = {one.kind, two.kind} <= {"hung", "stuck"}
        return waited and None not in places and places[0] == places[1]

    def _end(self) -> str:
        outcome = self.single
        if outcome.raised is not None:
            text = ": ".join(_first_lines(outcome.raised))
            return (
                f"there the single process raises {text}{self._place(outcome.raised)}"
            )
        if outcome.kind == "died":
            code = describe_exit(outcome.exit_code)
            return f"there the single process {code}"
        is_over = outcome.kind == "hung"
        how = "is still at work at the time limit" if is_over else "hangs"
        return f"there the single process {how}{frames.in_users(outcome.stack)}"

    def _place(self, raised: Raised) -> str:
        place = (raised.where or "").removeprefix(f"{self.script.folder}/")
        return f" ({place})" if place else ""

    def _told(self, refused: Refused) -> str:
        path = refused.path.removeprefix(f"{self.script.folder}/")
        return f"{refused.how} {path}"

    def _writes(self, raised: Raised) -> UsageError:
        found = [self._told(one) for one in self.made.refused]
        return UsageError(
            Problem(
                slug="script-writes",
                message=f"{self.script.name} changes files that existed before",
                expected="a script that leaves them as they are: a check runs it "
                "several times",
                found=cut(found) + self._place(raised),
                fix="give it other paths by its arguments, or allow it: ddpcheck run "
                f"--allow-writes {self.script.name} ...",
                stack=raised.stack,
            )
        )

    def _check_number(self) -> None:
        """Raises where the script starts another number of processes itself."""
        size = len(self.ranks)
        for raised in [o.raised for o in (*self.ranks, self.single)]:
            if raised is None or raised.type_name != OtherNumberError.__name__:
                continue
            number = int(raised.message.rpartition(" ")[2])
            fix = f"--world-sizes {number}, or {{world_size}} in the script's arguments"
            if number < 1 and not self.script.cuda_as_cpu:
                fix = "add --cuda-as-cpu before the script: it then finds as many "
                fix += "devices"
            raise UsageError(
                Problem(
                    slug="script-fails",
                    message=f"{self.script.name} starts {number} processes itself, "
                    f"and {size} ranks are to be checked",
                    expected=f"torch.multiprocessing.spawn with nprocs={size}",
                    found=f"nprocs={number}{self._place(raised)}",
                    fix=fix,
                    stack=raised.stack,
                )
            )

    def _check_cuda(self) -> None:
        """Raises where ranks fail for want of CUDA, which is no fault of the script.

        One that asks for CUDA on ranks alone trains as a single process.
        """
        for rank in self.ranks:
            raised = rank.raised
            if raised is None or steps(rank) >= self.asked:
                continue
            if not lacks_cuda(raised.message, raised.stack):
                continue
            raise UsageError(
                Problem(
                    slug="script-fails",
                    message=f"{self.script.name} fails on ranks, for want of CUDA",
                    expected="a script that trains on this machine",
                    found=": ".join(_first_lines(raised)) + self._place(raised),
                    fix=self._without_cuda(),
                    stack=raised.stack,
                )
            )

    def _is_for_want_of_cuda(self, raised: Raised) -> bool:
        """Returns whether the single process fails for it."""
        of = lacks_cuda if self.script.cuda_as_cpu else wants_cuda
        return of(raised.message, raised.stack)

    def _without_cuda(self) -> str:
        """Returns what to do for a script that asks for CUDA where there is none."""
        if self.script.cuda_as_cpu:
            return (
                "check it on a machine with CUDA, without --cuda-as-cpu: that does not "
                "replace what it asks for here"
            )
        return "add --cuda-as-cpu before the script: what it asks of CUDA, the CPU does"

    def _fails(self, raised: Raised) -> UsageError:
        """Returns the error for a script that raises in the single process."""
        if raised.type_name == "UsageError":
            if own := _OWN.match(raised.message):
                return UsageError(Problem(**own.groupdict(), stack=raised.stack))
            words = raised.message.partition(": ")[2].splitlines()
            raise CannotCheckError(words[0] if words else raised.message, raised.stack)
        name = self.script.name
        found = ": ".join(_first_lines(raised)) + self._place(raised)
        if raised.type_name == "SystemExit" and raised.message == str(USAGE_CODE):
            lines = self.single.stderr.strip().splitlines()[-_LAST_LINES:]
            found = " | ".join([*lines[-1:], found])
            fix = f"correct the arguments after {name}, which are the script's own"
        elif self._is_for_want_of_cuda(raised):
            fix = self._without_cuda()
        else:
            fix = f"make this work first: torchrun --nproc-per-node 1 {name} ..."
        also = any(o.kind == "raised" for o in self.ranks)
        return UsageError(
            Problem(
                slug="script-fails",
                message=f"{name} fails as a single process" + ", and on ranks" * also,
                expected="a script that trains with WORLD_SIZE=1: the runs are "
                "compared with it",
                found=found,
                fix=fix,
                stack=raised.stack,
            )
        )


def _is_refused(raised: Raised | None) -> bool:
    return raised is not None and _REFUSED in f"{raised.type_name} {raised.stack}"


def _first_lines(raised: Raised) -> Iterator[str]:
    """Yields the type of an exception, and the first line of its message."""
    yield raised.type_name.replace("ScriptInterrupt", "KeyboardInterrupt")
    yield from raised.message.strip().splitlines()[:1]
