"""The pages of usage errors about files and folders, for --explain."""

from __future__ import annotations

PAGES = {
    "baseline-file": """
The file given to --baseline is no report.

A baseline is what `ddpcheck TARGET --json baseline.json` wrote. Make one, look at
what is in it, and keep it beside the target: later checks fail on what is new only.
""",
    "baseline-overwritten": """
A check may not write over its own baseline.

The next check would find everything known. Keep the baseline under a name of its own,
and renew it by hand when a change of it has been looked at.
""",
    "baseline-target": """
The baseline is a report on another target.

Every target needs a baseline of its own: its runs and findings mean nothing for
others. The file names of both targets are compared, not their folders.
""",
    "init-path": """
--init does not write over a file, and makes no folder.

Name a path where nothing is yet: ddpcheck --init other.py
""",
    "output-not-ours": """
A report may not be written over a file that is no report of its kind.

--json, --junit-xml and --sarif write over what they wrote before, and over an empty
file. Any other file would be gone: give the report a name of its own.
""",
    "output-path": """
A report would have to be written where no file can be.

--json, --junit-xml and --sarif take the path of a file: one that is not a folder, nor
below a file. Folders that are missing are made. --report-dir takes a folder, and makes
one below it for each target. This is looked at before the check; what shows only when
it is written (permissions, a full disk) is a warning after it, and exit code 3.
""",
    "render-file": """
--render needs a report that ddpcheck wrote.

That is reports/TARGET/report.json, or what --json wrote. The message says why the
file is none: not JSON, another format number, or unknown fields.
""",
    "settings-file": """
pyproject.toml is not valid TOML.

ddpcheck reads the first pyproject.toml with a [tool.ddpcheck] table in the folder of
the target or above it. The message has the line at which reading stopped.
""",
    "target-overwritten": """
A report may not be written over the target.

The file that is checked would be gone. Give the report a name of its own.
""",
    "environment-no-folder": """
The working directory is gone.

Paths of targets and reports are relative to it, and what lies there can be imported. A
shell stays in a directory that has been deleted, and in the old one where another of
the same name took its place: `cd .` goes to the new one.
""",
}
