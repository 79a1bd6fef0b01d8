"""What the command asks for, by the environment; and what goes back to it, in a file."""

from __future__ import annotations

import functools
import glob
import json
import linecache
import os
import signal
import sys
import threading
from typing import Any

#: Where the answer goes, and the recording beside it.
FOLDER = os.environ.get("MILLPOND_PREDICT", "")

#: Steps of the optimizer after which the program is ended.
STEPS = int(os.environ.get("MILLPOND_PREDICT_STEPS") or 3)

#: What stands in for a value that a program asks for; none if it was not said.
ITEM = float(os.environ["MILLPOND_PREDICT_ITEM"]) if os.environ.get("MILLPOND_PREDICT_ITEM") else None

#: What is answered where a library asks if something holds for all values, and nobody knows which answer needs more memory.
ALL = os.environ.get("MILLPOND_PREDICT_ALL") != "no"

#: The part of its elements that a mask selects; none if it was not said.
SELECTED = float(os.environ["MILLPOND_PREDICT_SELECTED"]) if os.environ.get("MILLPOND_PREDICT_SELECTED") else None

#: The rank that this process is, of so many: as the command says, or a launcher such as torchrun. 0 without ranks.
RANK = int(os.environ.get("RANK") or 0)
RANKS = int(os.environ.get("WORLD_SIZE") or 0)

#: Whether the card is real, and the job runs for real: how a prediction is compared with the truth.
REAL = os.environ.get("MILLPOND_PREDICT_REAL") == "1"

#: The process that was begun with these settings. A child by fork has nothing to tell.
PROCESS = os.getpid()


class Answer:
    """What is told to the command."""

    def __init__(self) -> None:
        self.remarks: dict[str, int] = {}
        #: What is said before all else: without it, the figures are misread.
        self.first: dict[str, None] = {}
        self.figures: dict[str, Any] = {}

    def remark(self, text: str) -> None:
        """Says something once, however often it happens."""
        self.remarks[text] = self.remarks.get(text, 0) + 1

    def say_first(self, text: str) -> None:
        """Says something once, before all else."""
        self.first[text] = None

    def write(self, ended: str, error: str | None = None) -> None:
        answer = {"ended": ended, "error": error, "first": list(self.first), "remarks": list(self.remarks), **self.figures}
        path = os.path.join(FOLDER, f"{os.getpid()}.json")
        with open(path + ".part", "w", encoding="utf-8") as file:
            json.dump(answer, file)
        os.replace(path + ".part", path)


ANSWER = Answer()


def refuse(message: str) -> None:
    """Ends the process with a message for the command."""
    ANSWER.write("refused", message)
    leave(2)


def refuse_value(where: str, what: str) -> None:
    refuse(
        f"{where}: {what} needs a value that only a GPU would compute; say --item VALUE to answer all such questions, or change "
        "the line"
    )


def leave(status: int) -> None:
    """Ends the process at once: what a program does at its end, such as saving weights, is not wanted."""
    end_workers()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    os._exit(status)


def end_workers() -> None:
    """Ends the workers that the program began, such as those of a DataLoader: nobody would wait for them."""
    multiprocessing = sys.modules.get("multiprocessing")
    workers = multiprocessing.active_children() if multiprocessing else []
    if workers and threading.current_thread() is threading.main_thread():
        # A DataLoader raises an error in this thread when a worker ends, and threads that wait for one say so.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        threading.excepthook = lambda _args: None
    for worker in workers:
        worker.kill()


def is_own(file: str) -> bool:
    """Whether a source file is the program's, and no library's."""
    if any(part in file for part in ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ", "millpond_predict")):
        return False
    return not any(file.startswith(folder + os.sep) and holds_packages(folder) for folder in sys.path if folder)


@functools.cache
def holds_packages(folder: str) -> bool:
    """Whether packages were installed into a folder of sys.path, as `pip install --target` does."""
    return bool(glob.glob(os.path.join(glob.escape(folder), "*.dist-info")))


def place() -> tuple[str, bool]:
    """The program's line that runs, and whether it asked PyTorch itself, with no code of a library between."""
    frame, is_first = sys._getframe(1), True
    while frame is not None:
        file = frame.f_code.co_filename
        if "millpond_predict" not in file:
            if is_own(file):
                return f"{file}:{frame.f_lineno}", is_first
            is_first = False
        frame = frame.f_back  # type: ignore[assignment]
    return "the program", False


def line_of_library() -> tuple[str, str]:
    """The innermost line that runs outside of PyTorch: where it is, and its text."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if "millpond_predict" not in file and not frame.f_globals.get("__name__", "").startswith("torch."):
            return f"{os.path.basename(file)}:{frame.f_lineno}", linecache.getline(file, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return "", ""


def module_that_asks() -> tuple[str, str]:
    """The name of the module whose line asks, and the line's text."""
    frame = sys._getframe(1)
    while frame is not None and "millpond_predict" in frame.f_code.co_filename:
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return "", ""
    return frame.f_globals.get("__name__", ""), linecache.getline(frame.f_code.co_filename, frame.f_lineno)


def is_asked_by(end: str) -> bool:
    """Whether a file of this name is among the callers."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith(end):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
