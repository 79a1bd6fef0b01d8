"""PyTorch's settings of its allocator: the variable ``PYTORCH_CUDA_ALLOC_CONF``, and what a program sets later."""

from __future__ import annotations

import re
from os import environ
from typing import Any
from warnings import warn

from . import _millpond

#: In the order in which PyTorch looks for them.
VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

#: What has a meaning here.
OBEYED = ("garbage_collection_threshold", "per_process_memory_fraction")

#: What is of PyTorch's pinned memory, begins with this.
PINNED = "pinned_"

_SETTING = re.compile(r"\s*(\w+)\s*:\s*(\[[^\]]*\]|[^,]*?)\s*(?:,|$)")

#: The names that were said to have no effect.
_said: set[str] = set()


def parsed(settings: str) -> dict[str, str]:
    """The settings by name.

    Raises:
        ValueError: for what is no list of settings.
    """
    found: dict[str, str] = {}
    at = 0
    while at < len(settings):
        setting = _SETTING.match(settings, at)
        if setting is None:
            raise ValueError(f"{settings[at:]!r} is no setting: write name:value, with commas between them")
        found[setting[1]] = setting[2]
        at = setting.end()
    return found


def number(settings: dict[str, str], name: str) -> float | None:
    """A setting from 0 to 1.

    Raises:
        ValueError: for another value.
    """
    if name not in settings:
        return None
    try:
        value = float(settings[name])
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise ValueError(f"{name}:{settings[name]}: a number from 0 to 1 is expected")
    return value


def check_backend(settings: dict[str, str], source: str) -> None:
    """
    Raises:
        ValueError: for another backend than PyTorch's usual one.
    """
    other = settings.get("backend", "native")
    if other != "native":
        raise ValueError(
            f"{source} asks for the allocator {other!r}, and millpond is another one: leave out 'backend:{other}', or do not "
            "call millpond.torch.enable()"
        )


def without_effect(settings: dict[str, str], *, pinned: bool) -> list[str]:
    """The names that are neither obeyed here nor by PyTorch's own pinned memory."""
    return [
        name
        for name in settings
        if name not in (*OBEYED, "backend") and (pinned or not name.startswith(PINNED)) and name not in _said
    ]


def apply(settings: dict[str, str], source: str, *, pinned: bool) -> bool:
    """Does what the settings say. Returns whether a release threshold is among them.

    Raises:
        ValueError: for a wrong value.
    """
    fraction, threshold = (number(settings, name) for name in ("per_process_memory_fraction", "garbage_collection_threshold"))
    if fraction is not None:
        _millpond.torch_set_fraction(fraction)
    if threshold is not None:
        _millpond.torch_set_kept(threshold)
    ignored = without_effect(settings, pinned=pinned)
    if ignored:
        _said.update(ignored)
        warn(
            f"{source}: {', '.join(ignored)} {'has' if len(ignored) == 1 else 'have'} no effect with millpond, which "
            f"remaps pages instead of splitting segments",
            stacklevel=4,
        )
    return threshold is not None


def from_environment(torch: Any, *, pinned: bool) -> bool:
    """Does what the environment says, before PyTorch's allocator is replaced. As for :func:`apply`."""
    source = next((name for name in VARIABLES if name in environ), None)
    if source is None:
        return False
    found = parsed(environ[source])
    check_backend(found, source)
    check = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if check is not None:
        try:
            # It knows all names. It reads the variable at its first use anyway.
            check(environ[source])
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"{source}: {error}") from error
    return apply(found, source, pinned=pinned)


def replace_settings(torch: Any, *, pinned: bool, has_threshold: bool) -> None:
    """Has later settings of the program come here as well. ``has_threshold`` says whether there is a release threshold."""
    if has_threshold:
        replace_synchronize(torch)
    for name in ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings"):
        known = getattr(torch._C, name, None)
        if known is not None:
            setattr(torch._C, name, _setting(torch, known, pinned=pinned))


def _setting(torch: Any, known: Any, *, pinned: bool) -> Any:
    def set_allocator_settings(settings: str) -> None:
        """Changes PyTorch's settings of its allocator, as far as they have a meaning with millpond."""
        found = parsed(settings)
        check_backend(found, "what is set here")
        # PyTorch compares the backend's name with the allocator's.
        found.pop("backend", None)
        known(",".join(f"{name}:{value}" for name, value in found.items()))
        if apply(found, "what is set here", pinned=pinned):
            replace_synchronize(torch)

    return set_allocator_settings


def replace_synchronize(torch: Any) -> None:
    """Has the release threshold take effect when PyTorch waits for a GPU."""
    if getattr(torch._C._cuda_synchronize, "of_millpond", False):
        return
    known = torch._C._cuda_synchronize
    known_of_accelerator: Any = getattr(torch._C, "_accelerator_synchronizeDevice", None)

    def cuda_synchronize() -> None:
        known()
        _millpond.torch_synchronized(torch.cuda.current_device())

    def synchronize_device(index: int) -> None:
        known_of_accelerator(index)
        _millpond.torch_synchronized(index)

    cuda_synchronize.of_millpond = True  # type: ignore[attr-defined]
    torch._C._cuda_synchronize = cuda_synchronize
    if known_of_accelerator is not None:
        torch._C._accelerator_synchronizeDevice = synchronize_device
