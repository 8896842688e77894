"""The `task.run` command: a script on the machine, whose exit code says what is wanted next.

The script ends with the agent: where the agent's process dies, the kernel ends the script's, and what that had
started is found by a word in its environment and ended at the next start. Its command then ends as interrupted.
"""

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import structlog

from agent.departure import Means
from agent.endings import broken_off
from agent.files import make_private_folder
from agent.handlers import CURRENT_COMMAND, Answer
from agent.own_machine import OwnMachine
from drivers.driver import ProgressListener
from drivers.linux.host import Host
from protocol.commands import Ending
from protocol.durations import parse_duration
from protocol.errors import ErrorCode, Issue, OperationError
from protocol.operations import Repeat
from protocol.shapes.machine import TaskExit, TaskRun, TaskRunResult, task_exit
from protocol.validation import check

__all__ = ["BoundedOutput", "TaskRunner", "end_left_over"]

_log = structlog.get_logger("agent.task_run")
_MARK = "RACKWRIGHT_COMMAND"
_HEAD_BYTES, _TAIL_BYTES = 16 << 10, 48 << 10
_MOST_LOGGED_LINES = 1_000
_LONGEST_LOGGED_LINE = 400
_KILL_SECONDS = 5.0
_DRAIN_SECONDS = 1.0
_LEFT_OVER_SECONDS = 10.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SET_PARENT_DEATH_SIGNAL = 1


class BoundedOutput:
    """The beginning and the end of what a program writes, however much that is."""

    def __init__(self, head: int = _HEAD_BYTES, tail: int = _TAIL_BYTES) -> None:
        self._head_size, self._tail_size = head, tail
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._kept = 0
        self.omitted = 0

    def add(self, data: bytes) -> None:
        room = self._head_size - len(self._head)
        self._head += data[:room]
        if rest := data[room:]:
            self._tail.append(rest)
            self._kept += len(rest)
        while self._kept > self._tail_size:
            over = self._kept - self._tail_size
            first = self._tail.popleft()
            if len(first) > over:
                self._tail.appendleft(first[over:])
            gone = min(over, len(first))
            self._kept -= gone
            self.omitted += gone

    def text(self) -> str:
        """Bytes that are no UTF-8 are shown as replacement characters."""
        gap = f"\n[… {self.omitted} bytes left out …]\n".encode() if self.omitted else b""
        return (bytes(self._head) + gap + b"".join(self._tail)).decode(errors="replace")


class TaskRunner:
    """Handles `task.run`."""

    def __init__(self, machine: OwnMachine) -> None:
        self._machine = machine

    def faults(self, payload: Mapping[str, object]) -> list[Issue]:
        asked, issues = check(TaskRun, payload, "payload")
        if asked is not None and asked.timeout is not None:
            try:
                parse_duration(asked.timeout)
            except ValueError as error:
                issues.append(Issue("payload.timeout", str(error)))
        return issues

    def repeat(self, payload: Mapping[str, object]) -> Repeat:
        return Repeat.ONCE

    @contextlib.asynccontextmanager
    async def turn(self, payload: Mapping[str, object]) -> AsyncIterator["_Task"]:
        async with self._machine.lane("task.run") as lane:
            yield _Task(self._machine, msgspec.convert(payload, TaskRun), lane)


class _Task:
    def __init__(self, machine: OwnMachine, asked: TaskRun, lane: AsyncExitStack) -> None:
        self._machine = machine
        self._asked = asked
        self._lane = lane
        self._command = CURRENT_COMMAND.get()

    async def run(self, timeout: float, progress: ProgressListener) -> Answer:
        """Raises OperationError: NOT_APPLIED (another exit code than those with a meaning), TIMEOUT, or
        INVALID_ARGUMENT (it cannot be started)."""
        asked = self._asked
        own = parse_duration(asked.timeout) / 1000 if asked.timeout is not None else timeout
        folder = self._machine.state / "tasks" / (self._command or "task")
        try:
            script = await asyncio.to_thread(_lay_out, folder, asked.script)
            output = BoundedOutput()
            began = time.monotonic()
            code = await self._execute(script, min(own, timeout), output, progress)
            seconds = round(time.monotonic() - began, 3)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, True)
        meaning = task_exit(code)
        if meaning is None:
            raise OperationError(ErrorCode.NOT_APPLIED, _failure(code, output), details=_details(code, output))
        return await self._answer(code, meaning, seconds, output, timeout)

    async def observe(self, timeout: float) -> Ending:
        """An earlier process began it: whatever is left of it is ended."""
        ended = await end_left_over(self._machine.host, self._command)
        if self._machine.departures.is_by(self._command):
            return self._machine.departures.ending_of(self._command)
        left = f"; {ended} of its processes were left, and were ended" if ended else ""
        return broken_off(
            f"the agent was restarted while the script ran, which ended with it{left}. What it had done by then is "
            "done: run it again where that is harmless",
            {"mayHaveHappened": True},
        )

    async def _answer(
        self, code: int, meaning: TaskExit, seconds: float, output: BoundedOutput, timeout: float
    ) -> Answer:
        result: dict[str, object] = msgspec.to_builtins(
            TaskRunResult(
                exit_code=code,
                outcome=meaning.outcome,
                then=meaning.then,
                seconds=seconds,
                output=output.text(),
                omitted_bytes=output.omitted,
            )
        )
        if meaning.then is not None:
            await self._machine.departures.intend(
                self._command, Means(meaning.then), timeout=timeout, result=result, lane=self._lane
            )
        return Answer(result)

    async def _execute(self, script: Path, timeout: float, output: BoundedOutput, progress: ProgressListener) -> int:
        asked = self._asked
        words = [*_interpreter(asked), str(script), *asked.arguments]
        environment = {
            "PATH": _PATH,
            "HOME": "/root",
            "LANG": "C.UTF-8",
            **asked.environment,
            "RACKWRIGHT_NODE": asked.target_node_id or "",
            _MARK: self._command,
        }
        async with _pipe() as (stream, write_end):
            process = await self._start(words, environment, script.parent, write_end)
            reading = asyncio.create_task(self._read(stream, output, progress))
            try:
                async with asyncio.timeout(timeout):
                    return await process.wait()
            except TimeoutError:
                raise OperationError(
                    ErrorCode.TIMEOUT,
                    f"the script did not end within {timeout:.0f} s and was ended; what it had done by then is done",
                    details=_details(None, output),
                ) from None
            finally:
                if process.returncode is None:
                    await _end(process)
                # What it left running in the background may hold the pipe for ever.
                await asyncio.wait((reading,), timeout=_DRAIN_SECONDS)
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    async def _start(
        self, words: list[str], environment: dict[str, str], folder: Path, write_end: int
    ) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write_end,
                stderr=asyncio.subprocess.STDOUT,
                cwd=folder,
                env=environment,
                start_new_session=True,
                preexec_fn=_end_with_the_agent,
            )
        except (OSError, ValueError) as error:
            raise OperationError(
                ErrorCode.INVALID_ARGUMENT, f"the script cannot be started by {words[0]}: {error}; nothing was done"
            ) from error
        finally:
            os.close(write_end)

    async def _read(self, stream: asyncio.StreamReader, output: BoundedOutput, progress: ProgressListener) -> None:
        """The log of it is live: each line is progress, and a line of the agent's own log."""
        logged, rest = 0, b""
        while data := await stream.read(1 << 16):
            output.add(data)
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[-_LONGEST_LOGGED_LINE:]
            for raw in lines:
                line = raw[:_LONGEST_LOGGED_LINE].decode(errors="replace").strip()
                if line and logged < _MOST_LOGGED_LINES:
                    _log.info("task_says", command=self._command, line=line)
                    logged += 1
            last = next((raw for raw in reversed(lines) if raw.strip()), b"")
            if last:
                progress(last[:_LONGEST_LOGGED_LINE].decode(errors="replace").strip(), None)


@contextlib.asynccontextmanager
async def _pipe() -> AsyncIterator[tuple[asyncio.StreamReader, int]]:
    """A pipe whose reading end can be closed while somebody still holds the other, which the caller has to close."""
    read_end, write_end = os.pipe()
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(read_end, "rb", 0)
    )
    try:
        yield stream, write_end
    finally:
        transport.close()


async def end_left_over(host: Host, command: str) -> int:
    """Ends every process that a command's script has left, and returns how many there were."""
    if not command:
        return 0
    found = await asyncio.to_thread(_processes_of, host, command)
    deadline = time.monotonic() + _LEFT_OVER_SECONDS
    left = found
    while left and time.monotonic() < deadline:
        for number in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(number, signal.SIGKILL)
        await asyncio.sleep(0.05)
        left = await asyncio.to_thread(_processes_of, host, command)
    return len(found)


def _processes_of(host: Host, command: str) -> list[int]:
    """By their environment, which the kernel keeps as it was at their start. Those that have ended are none."""
    word = f"{_MARK}={command}".encode()
    found = []
    for entry in host.proc.iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if word in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def _lay_out(folder: Path, text: str) -> Path:
    make_private_folder(folder)
    script = folder / "script"
    script.write_text(text)
    script.chmod(0o700)
    return script


def _interpreter(asked: TaskRun) -> list[str]:
    if asked.interpreter is not None:
        return [asked.interpreter]
    # Named here, and not left to the kernel: the agent's folder may be mounted noexec.
    first = asked.script.partition("\n")[0]
    return first[2:].split(None, 1) or ["/bin/sh"] if first.startswith("#!") else ["/bin/sh"]


def _end_with_the_agent() -> None:
    """In the child, before the script (prctl(2), PR_SET_PDEATHSIG)."""
    _libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


_libc = ctypes.CDLL(None)
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4


async def _end(process: asyncio.subprocess.Process) -> None:
    """The script and all that is still in its session's group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(process.wait()), _KILL_SECONDS)
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _failure(code: int, output: BoundedOutput) -> str:
    last = next((line.strip() for line in reversed(output.text().splitlines()) if line.strip()), "")
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"the script {how}" + (f": {last[:_LONGEST_LOGGED_LINE]}" if last else ", and wrote nothing")


def _details(code: int | None, output: BoundedOutput) -> dict[str, object]:
    return {"exitCode": code, "output": output.text(), "omittedBytes": output.omitted}
