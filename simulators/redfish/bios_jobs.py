"""BIOS settings that a BMC applies by a job: scheduled with the change, run with the next start of the host."""

from collections.abc import Callable

from simulators.redfish.documents import Answer, path_key
from simulators.redfish.errors import Message, RedfishError
from simulators.redfish.machine import Machine
from simulators.redfish.tasks import RunningTask, TaskEngine

NAME = "Configure: BIOS.Setup.1-1"


class BiosJobs:
    """At most one job waits for each BIOS, and while it waits or runs no other change is taken.

    Source: dell/iDRAC-Redfish-Scripting issue 249, quadsproject/quads issue 726 (SYS011).
    """

    def __init__(self, machine: Machine, tasks: TaskEngine) -> None:
        self.machine = machine
        self.tasks = tasks
        self._jobs: dict[str, RunningTask] = {}

    def check_free(self, bios: str) -> None:
        """RedfishError while a job of this BIOS waits or runs."""
        job = self._jobs.get(path_key(bios))
        if job is not None and not job.has_ended:
            text = "Pending configuration values are already committed, unable to perform another set operation."
            raise RedfishError(400, Message("IDRAC.2.8.SYS011", text, resolution="Wait for the scheduled job."))

    def schedule(self, bios: str) -> Answer:
        """The answer to a change that is to be applied with the next start: 202 with the job."""
        answer, job = self.tasks.schedule(NAME)
        self._jobs[path_key(bios)] = job
        return answer

    def apply_now(self, work: Callable[[], None]) -> Answer:
        """The answer to a change that is to be applied at once: a task that does it."""
        return self.tasks.start(NAME, work)

    def host_starts(self, bios: str, work: Callable[[], None]) -> None:
        """Runs the job that waits, with `work` at its end; without one the work is done at once."""
        job = self._jobs.get(path_key(bios))
        if job is None or job.has_ended:
            work()
        else:
            self.tasks.run(job, work)
