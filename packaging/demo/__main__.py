"""`make demo`: a control plane, a site agent and a small site as real processes; every operation on every BMC.

Exit codes: 0 everything was as asked, by the BMCs' own word; 1 something was not, and why; 130 interrupted, or nobody
reads the output.
"""

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import click
from bmc import Bmc
from children import Children
from demo_site import DemoSite
from exercise import Outcome, Row, Step, exercise
from images import ImageServer
from installation import Agent, ControlPlane
from screen import LiveScreen, Screen
from workspace import DemoFailure, Workspace

from protocol.errors import RackwrightError

_LONGEST = 85.0
"""Seconds; a demo that takes longer has failed."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

News = tuple[Bmc, Step | Row | BaseException | None]
"""A step that begins, one that ended, what broke a machine's thread, or None at its end."""


class Interrupted(BaseException):
    """SIGINT, SIGTERM or SIGHUP."""


@click.command()
@click.option("--own-simulators-only", is_flag=True, help="Use none of the peers that others wrote.")
@click.option(
    "--bmc-password-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The password of every BMC, up to 16 letters and digits.  [default: random ones]",
)
def main(own_simulators_only: bool, bmc_password_file: Path | None) -> None:
    """Bring up a small site, drive every machine through it, and read back from the BMCs what they did."""
    screen = LiveScreen() if sys.stdout.isatty() else Screen()
    password = bmc_password_file.read_text().strip() if bmc_password_file else None
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    _on_signals(_interrupt)
    workspace = Workspace()
    children = Children(workspace.logs, workspace.make_folder("tmp"))
    reason, code = "", 0
    try:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            rows = run(screen, workspace, children, own_simulators_only, password)
            screen.summary(rows)
            reason = shortfall(rows)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            reason, code = "nobody reads the output", 130
        except (DemoFailure, RackwrightError, OSError) as error:
            reason = str(error)
        except Interrupted:
            reason, code = "interrupted", 130
    except BaseException:
        _clean_up(screen, workspace, children, failed=True)
        raise
    code = code or (1 if reason else 0)
    if reason:
        screen.failure(reason)
    if not _clean_up(screen, workspace, children, failed=code == 1):
        code = code or 1
    sys.exit(code)


def run(screen: Screen, workspace: Workspace, children: Children, own_only: bool, password: str | None) -> list[Row]:
    """The whole demo; the rows of the summary. Raises DemoFailure, RackwrightError, OSError, Interrupted."""
    screen.phase("A control plane, and the machines of a site")
    plane = ControlPlane(children, workspace, screen.command)
    site = DemoSite(children, workspace, own_only=own_only, password=password)
    for note in site.notes:
        screen.note(note)
    plane.wait_until_ready()

    screen.phase("A site agent: it joins with a one-time token, and speaks mutual TLS from then on")
    agent = Agent(children, workspace, screen.command)
    agent.join(plane)
    agent.keep(site.logins)
    agent.run()
    screen.note(f"connected: {agent.wait_until_connected(plane)}")

    screen.phase("The machines are registered")
    bmcs = site.wait_until_serving()
    plane.log_in()
    plane.register(bmcs)
    for line in plane.list_nodes():
        screen.note(line)

    screen.phase("Every operation on every machine, read back from its BMC")
    screen.command("rackwright invoke alder power.setPower action=on")
    screen.command("rackwright invoke alder virtual-media.insertMedia image=http://… device=cd")
    screen.command("rackwright invoke alder boot.setBootDevice device=cd")
    with ImageServer(workspace.address) as images, screen.driving(bmcs):
        rows = drive(screen, plane, bmcs, images.url)
    ways = sorted({bmc.witness.how for bmc in bmcs})
    done = sum(row.seconds is not None for row in rows)
    screen.note(f"{done} operations on {len(bmcs)} machines, each read back by {' or '.join(ways)}")
    return rows


def drive(screen: Screen, plane: ControlPlane, bmcs: list[Bmc], image: str) -> list[Row]:
    """All machines at the same time, each in its order; the rows machine by machine."""
    news: queue.SimpleQueue[News] = queue.SimpleQueue()
    for bmc in bmcs:
        threading.Thread(target=_drive_one, args=(plane, bmc, image, news), daemon=True).start()
    rows: dict[str, list[Row]] = {bmc.name: [] for bmc in bmcs}
    under_way = {bmc.name for bmc in bmcs}
    while under_way:
        try:
            bmc, item = news.get(timeout=max(0.0, _LONGEST - screen.seconds))
        except queue.Empty:
            raise DemoFailure(f"not done after {_LONGEST:g} s: {', '.join(sorted(under_way))}") from None
        match item:
            case None:
                under_way.remove(bmc.name)
            case Step():
                screen.begins(bmc, item)
            case Row():
                screen.ended(item)
                rows[bmc.name].append(item)
            case _:
                raise DemoFailure(f"{bmc.name}: {item}") from item
    return [row for bmc in bmcs for row in rows[bmc.name]]


def shortfall(rows: list[Row]) -> str:
    """What was not as asked; empty where all was."""
    wrong = [row for row in rows if row.outcome is Outcome.WRONG]
    return "\n".join(f"{row.bmc.name}: {row.step.operation} {row.step.asked}: {row.says}" for row in wrong)


def _drive_one(plane: ControlPlane, bmc: Bmc, image: str, news: queue.SimpleQueue[News]) -> None:
    try:
        with plane.client() as client:
            for row in exercise(bmc, client, image, lambda step: news.put((bmc, step))):
                news.put((bmc, row))
        news.put((bmc, None))
    except Exception as error:
        news.put((bmc, error))


def _clean_up(screen: Screen, workspace: Workspace, children: Children, *, failed: bool) -> bool:
    """Ends every process and removes the folder; whether nothing is left. Not to be interrupted."""
    _on_signals(signal.SIG_IGN)
    children.end()
    left = children.end_leftovers()
    logs = workspace.remove(keep_logs=failed)
    if logs is not None:
        screen.note(f"the logs are kept in {logs}")
    if left:
        screen.failure("these processes are left: " + "; ".join(left))
        return False
    screen.phase(f"Nothing is left running: {children.count} processes were started and have ended")
    return True


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    _on_signals(signal.SIG_IGN)
    raise Interrupted


def _on_signals(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in _SIGNALS:
        signal.signal(number, handler)


if __name__ == "__main__":
    main()
