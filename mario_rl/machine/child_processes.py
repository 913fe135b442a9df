"""What every child process is started with: one thread for each library, and the stop signals blocked.

Ctrl-C, a service manager's SIGTERM and a closed terminal's SIGHUP reach the whole group, and it is the parent's
business to save and to stop its children.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing import parent_process, resource_tracker
from multiprocessing.connection import wait

import cv2
import torch

_STOP_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_starting = threading.Lock()  # the environment is the process's, and collectors and evaluators may start at one time
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@contextlib.contextmanager
def ready_for_children() -> Iterator[None]:
    """Children that are started inside inherit a signal mask and an environment made for them."""
    with _starting, _signals_blocked(), _environment(_ONE_THREAD):
        yield


def use_one_thread() -> None:
    """In the child: what the environment does not tell."""
    torch.set_num_threads(1)
    cv2.setNumThreads(1)


def end_with_parent() -> None:
    """In a child that is busy for long: end when the parent is gone, in the middle of whatever it is doing."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Children inherit the signal mask: block the stop signals while they start; ours are delivered afterwards."""
    resource_tracker.ensure_running()  # the first spawn would start it, and it *unblocks* signals when it is done
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Environment variables for children; torch reads them when it is imported, long before our code runs."""
    previous = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
