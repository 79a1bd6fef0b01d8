"""What ``millpond run`` puts first on PYTHONPATH: each Python process of the program begins with it, and then with its own."""

import importlib.machinery
import importlib.util
import os
import sys

import millpond_imports  # noqa: F401


def run_the_programs_own():
    """The next ``sitecustomize`` on the path."""
    here = os.path.dirname(os.path.abspath(__file__))
    path = [os.path.abspath(folder or os.curdir) for folder in sys.path]
    # What another ``millpond run`` put first stands before it.
    after = path[path.index(here) + 1 :] if here in path else path
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", after)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


run_the_programs_own()
