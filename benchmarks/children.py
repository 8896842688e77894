"""Child processes whose cost is measured from outside, so that a server's figures are not its clients'."""

import contextlib
import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import psutil

__all__ = ["Child", "child", "more_files"]


class Child:
    """A spawned process that runs `target(pipe, *arguments)`; `pipe` is its end of `self.pipe`."""

    def __init__(self, target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
        self.process.start()
        theirs.close()
        self._observed = psutil.Process(self.process.pid)

    def receive(self, timeout: float = 120.0) -> Any:
        """The next thing that the child says. Raises TimeoutError, or EOFError when it died."""
        if not self.pipe.poll(timeout):
            raise TimeoutError(f"a benchmark's child said nothing for {timeout:g} s")
        return self.pipe.recv()

    @property
    def rss(self) -> int:
        """Bytes of resident memory now."""
        return int(self._observed.memory_info().rss)

    @property
    def memory(self) -> int:
        """Bytes that it holds; of pages shared with others its part (the kernel's PSS)."""
        return int(self._observed.memory_full_info().pss)

    @property
    def cpu(self) -> float:
        """Seconds of processor time so far."""
        times = self._observed.cpu_times()
        return float(times.user + times.system)

    def settle(self, seconds: float = 2.0) -> None:
        """Waits until the child is idle, so that what is measured next is its own."""
        while True:
            before = self.cpu
            time.sleep(seconds / 4)
            if self.cpu - before < seconds / 4 * 0.05:
                return

    def stop(self) -> None:
        self.process.terminate()
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


@contextlib.contextmanager
def child(target: Callable[..., None], *arguments: Any) -> Iterator[Child]:
    """A child for the length of a block."""
    started = Child(target, arguments)
    try:
        yield started
    finally:
        started.stop()


def more_files(count: int = 20_000) -> None:
    """Raises this process's limit of open files as far as it is allowed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if os.geteuid() == 0 and hard < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))
    else:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


Pipe = Connection
