"""Threads beside the program, one for each communicator whose calls come from there."""
from __future__ import annotations

import queue
import threading
import weakref
from typing import Any, Callable

from ...comm import Comm

_SETTLED_S = 60  #: how long to wait for calls whose communicator was aborted

_queues: "weakref.WeakKeyDictionary[Comm, queue.SimpleQueue[Any]]" = weakref.WeakKeyDictionary()


def put(comm: Comm, job: Callable[[], None]) -> None:
    """Runs it on the communicator's thread, behind what that was given before."""
    found = _queues.get(comm)
    if found is None:
        found = _queues[comm] = queue.SimpleQueue()
        weakref.finalize(comm, found.put, None)
        # No thread that the end of the process waits for: the communicator is closed there, which ends its call.
        threading.Thread(target=_work, args=(found,), name="heddle exchanges", daemon=True).start()
    found.put(job)


def settle(comm: Comm) -> None:
    """Waits until the thread of a communicator that was aborted is through with its calls."""
    if comm in _queues:
        done = threading.Event()
        put(comm, done.set)
        done.wait(_SETTLED_S)


def _work(jobs: "queue.SimpleQueue[Any]") -> None:
    while True:
        job = jobs.get()
        if job is None:
            return
        job()
        del job  # and with it the communicator, while nothing is to do
