"""Stacks of ranks, as Python and faulthandler write them: where a rank was."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath

# 'File "x.py", line 3, in f' in a traceback, without the second comma in the stacks
# of faulthandler.
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<name>\S+)')
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x", re.MULTILINE)
_MAIN = "in rank_main"  # the frame that only a rank's main thread has
_OWN = "/ddpcheck/"
# Collectives; what DDP exchanges beside its gradients; backwards, at whose end it
# waits for those.
_EXCHANGES = ("/torch/distributed/", "/torch/nn/parallel/", "/torch/autograd/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One frame of a stack."""

    file: str
    line: int
    name: str

    @property
    def place(self) -> str:
        """The file and line: "/home/me/mymodel.py:12"."""
        return f"{self.file}:{self.line}"

    @property
    def short(self) -> str:
        """What a sentence says of it: "mymodel.py:12 in loss"."""
        _, _, inside = self.file.rpartition("site-packages/")
        file = inside if inside != self.file else PurePath(self.file).name
        return f"{file}:{self.line} in {self.name}"

    @property
    def is_torch(self) -> bool:
        """Whether it is code of torch."""
        return "/torch/" in self.file

    @property
    def is_exchange(self) -> bool:
        """Whether it is code of torch in which ranks wait for each other."""
        return any(part in self.file for part in _EXCHANGES)

    @property
    def is_users(self) -> bool:
        """Whether it is neither installed code, nor the interpreter's, nor ours."""
        library = "site-packages" in self.file or re.search(
            r"/lib(64)?/python3", self.file
        )
        return not library and _OWN not in self.file and self.file[0] != "<"


def frames(stack: str) -> list[Frame]:
    """Returns the frames of a rank's main thread, the innermost first."""
    parts = _THREAD.split(stack)
    is_dump = len(parts) > 1
    text = next((part for part in parts if _MAIN in part), parts[-1])
    found = [
        Frame(file=m["file"], line=int(m["line"]), name=m["name"])
        for m in _FRAME.finditer(text)
    ]
    return found if is_dump else found[::-1]


def exchanges(stack: str) -> bool:
    """Returns whether the rank is in an exchange with others, in torch's own code."""
    frame = innermost(stack)
    return frame is not None and frame.is_exchange


def innermost(stack: str) -> Frame | None:
    """Returns the frame that runs, whosever code it is, but for ours."""
    return next((f for f in frames(stack) if _OWN not in f.file), None)


def users(stack: str) -> Frame | None:
    """Returns the user's innermost frame."""
    return next((f for f in frames(stack) if f.is_users), None)
