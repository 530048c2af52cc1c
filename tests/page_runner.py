"""Runs scripts, each in its own process that starts with torch imported: a fork, no fresh interpreter.

Reads lines of JSON with `script`, `folder` and `environment`; answers each with `code` and `output`.
"""

import json
import os
import runpy
import signal
import sys
import traceback
from pathlib import Path

import torch  # noqa: F401  so that every script finds it imported

import tammes.heads.prototype
import tammes.losses.catalogue  # noqa: F401

SECONDS = 120


def run(request: dict) -> None:
    """In the child: run the script as `python script` would, and end."""
    signal.alarm(SECONDS)
    os.chdir(request["folder"])
    os.environ.update(request["environment"])
    log = os.open("output.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.path.insert(0, request["folder"])
    sys.argv = [request["script"]]
    code = 0
    try:
        runpy.run_path(request["script"], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":  # pytest imports every module of the tests, to look for doctests
    for line in sys.stdin:
        request = json.loads(line)
        if (child := os.fork()) == 0:
            run(request)
        _, status = os.waitpid(child, 0)
        output = (Path(request["folder"]) / "output.txt").read_text(errors="replace")
        print(json.dumps({"code": os.waitstatus_to_exitcode(status), "output": output}), flush=True)
