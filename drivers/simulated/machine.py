"""The simulated machines of this process, and one connection to one of them."""

import asyncio
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from drivers.driver import Call, Environment
from drivers.simulated.acts import Act, ActStore, FileStore, MemoryStore
from drivers.simulated.identity import Identity, identity_of
from drivers.simulated.script import Fault, Moment, Script, clear_scripts, script_for
from drivers.simulated.state import MachineState, copy_of
from drivers.target import Target
from protocol.durations import parse_duration
from protocol.errors import ErrorCode, OperationError
from protocol.operations import Repeat, find
from protocol.shapes import Arguments

__all__ = ["STATE_VARIABLE", "SimulatedConnection", "act_counts", "acts", "clear", "state"]

STATE_VARIABLE = "RACKWRIGHT_SIMULATED_STATE"
T = TypeVar("T")

_CONFIDENTIAL = frozenset({"userData", "metaData", "networkData", "document"})


class Machine:
    """One machine that is not there. Every connection of the process to this name meets the same one."""

    def __init__(self, name: str, folder: str | None) -> None:
        self.name = name
        self.calls = 0
        self._store: ActStore = MemoryStore() if folder is None else FileStore(Path(folder), name)
        self._lock = threading.Lock()
        self._fresh: tuple[Script, MachineState] | None = None

    def look(self, script: Script) -> MachineState:
        """What the machine is; the caller changes nothing."""
        found = self._store.state()
        if found is not None:
            return found
        if self._fresh is None or self._fresh[0] is not script:
            self._fresh = (script, msgspec.convert(script.state, MachineState))
        return self._fresh[1]

    def act(
        self,
        script: Script,
        operation: str,
        args: Mapping[str, object],
        deed: Callable[[MachineState], tuple[bool, T]],
    ) -> T:
        """Executes a changing operation: after this it has happened and is counted. Not so when the deed raises."""
        with self._lock, self._store.changing():
            after = copy_of(self.look(script))
            changed, result = deed(after)
            self._store.keep(
                Act(operation=operation, args=_shown(args), changed=changed, pid=os.getpid(), state=after)
            )
        return result

    def fault(self, script: Script, operation: str) -> Fault | None:
        """The fault that this call meets; each fault counts the calls that match it."""
        if not script.faults:
            return None
        met = None
        with self._lock, self._store.changing():
            key = _key(script)
            counts = self._store.fault_counts(key, len(script.faults))
            for index, fault in enumerate(script.faults):
                if not fault.matches(operation):
                    continue
                counts[index] += 1
                beyond = counts[index] - fault.after
                if met is None and beyond > 0 and (fault.count is None or beyond <= fault.count):
                    met = fault
            self._store.keep_fault_counts(key, counts)
        return met

    def acts(self) -> list[Act]:
        return self._store.acts()

    def act_counts(self) -> dict[str, int]:
        return self._store.counts()


class SimulatedConnection:
    """One credential's way to one machine: waits, fails and acts as the machine's script says."""

    def __init__(self, target: Target, environment: Environment) -> None:
        self.target = target
        self.environment = environment
        self._name = target.parsed.host

    @property
    def identity(self) -> Identity:
        return identity_of(self._name)

    async def aclose(self) -> None:
        """There is no session to end."""

    async def prove_login(self, call: Call) -> None:
        """Raises OperationError where the machine refuses it."""
        self.environment.breaker.check(self.target)
        self._log_in(self._machine(), script_for(self._name))

    async def read(self, call: Call, look: Callable[[MachineState], T]) -> T:
        """One reading of the machine. Raises what its script says."""
        machine, script = self._machine(), script_for(self._name)
        fault = await self._arrive(machine, script, call, None, ())
        result = look(machine.look(script))
        await self._leave(fault, call, None)
        return result

    async def glance(self, call: Call) -> MachineState:
        """A reading that is in no count of calls. Raises what every such call meets."""
        machine, script = self._machine(), script_for(self._name)
        self.environment.breaker.check(self.target)
        await self._wait(script.delay_ms(call.operation, self._name, 0) / 1000, call, None)
        self._log_in(machine, script)
        for fault in self.faults_for_good():
            if fault.matches(call.operation):
                await self._strike(fault, call, None)
        return machine.look(script)

    async def change(
        self,
        call: Call,
        arguments: Arguments,
        deed: Callable[[MachineState], tuple[bool, T]],
        stages: Sequence[str] = (),
    ) -> T:
        """One change: `deed` alters the state it is given and says whether anything changed; or it raises.

        It runs once the machine would act; from then on it has happened, whatever becomes of the answer. `stages` are
        reported as progress while the latency passes.
        """
        machine, script = self._machine(), script_for(self._name)
        fault = await self._arrive(machine, script, call, arguments, stages)
        args: dict[str, object] = msgspec.to_builtins(arguments)
        result = machine.act(script, call.operation, args, deed)
        await self._leave(fault, call, arguments)
        return result

    def faults_for_good(self) -> list[Fault]:
        """The faults that every call of their operations meets."""
        return [fault for fault in script_for(self._name).faults if fault.strikes_for_good]

    def _machine(self) -> Machine:
        return machine_of(self._name)

    async def _arrive(
        self, machine: Machine, script: Script, call: Call, arguments: Arguments | None, stages: Sequence[str]
    ) -> Fault | None:
        self.environment.breaker.check(self.target)
        machine.calls += 1
        seconds = script.delay_ms(call.operation, self._name, machine.calls) / 1000
        for number, stage in enumerate(stages):
            call.progress(stage, 100 * number / len(stages))
            await self._wait(seconds / len(stages), call, arguments)
        if not stages:
            await self._wait(seconds, call, arguments)
        self._log_in(machine, script)
        if script.observed:
            call.observed.update(script.observed)
        fault = machine.fault(script, call.operation)
        if fault is not None and fault.moment is Moment.BEFORE:
            await self._strike(fault, call, arguments)
        return fault

    async def _leave(self, fault: Fault | None, call: Call, arguments: Arguments | None) -> None:
        if fault is not None and fault.moment is Moment.AFTER:
            await self._strike(fault, call, arguments)

    def _log_in(self, machine: Machine, script: Script) -> None:
        """The script's password counts until it is changed: the machine is not told the new one, and takes any."""
        changed = machine.look(script).config.credentials if script.password is not None else {}
        if script.password is None or self.target.username in changed:
            return
        if self.target.secret.reveal() == script.password:
            self.environment.breaker.accepted(self.target)
            return
        self.environment.breaker.refused(self.target, "the simulated machine takes another password")
        raise OperationError(ErrorCode.AUTH_FAILED, f"{self.target.address} refused the user name and password")

    async def _strike(self, fault: Fault, call: Call, arguments: Arguments | None) -> None:
        await self._wait(math.inf if fault.hang else parse_duration(fault.delay) / 1000, call, arguments)
        if fault.code is None:
            return
        if fault.code is ErrorCode.AUTH_FAILED:
            self.environment.breaker.refused(self.target, fault.message or "as its script says")
        raise OperationError(
            fault.code, fault.message or f"{self.target.address} fails as its script says", bmc=fault.bmc
        )

    async def _wait(self, seconds: float, call: Call, arguments: Arguments | None) -> None:
        """Lets time pass, if any: a machine that costs no time costs no turn of the event loop either."""
        if not seconds:
            return
        if seconds < call.remaining:
            await asyncio.sleep(seconds)
            return
        await asyncio.sleep(call.remaining)
        once = (
            arguments is not None and find(call.operation).repeat_for(msgspec.to_builtins(arguments)) is Repeat.ONCE
        )
        raise OperationError(
            ErrorCode.OUTCOME_UNKNOWN if once else ErrorCode.TIMEOUT,
            f"{self.target.address} did not answer {call.operation} in time",
        )


def machine_of(name: str) -> Machine:
    """The machine of this name, made when first asked for."""
    name = name.lower()
    folder = os.environ.get(STATE_VARIABLE) or None
    found = _machines.get((folder, name))
    if found is None:
        found = _machines.setdefault((folder, name), Machine(name, folder))
    return found


def state(name: str) -> MachineState:
    """What a machine is now, without asking it: for tests. Not to be changed."""
    return machine_of(name).look(script_for(name.lower()))


def acts(name: str) -> list[Act]:
    """What a machine really did, oldest first: every act in a state folder, the last 1000 in memory."""
    return machine_of(name).acts()


def act_counts(name: str) -> dict[str, int]:
    """How often a machine executed each changing operation."""
    return machine_of(name).act_counts()


def clear() -> None:
    """Forgets every machine and script of this process; files stay."""
    _machines.clear()
    clear_scripts()


_machines: dict[tuple[str | None, str], Machine] = {}


def _shown(args: Mapping[str, object]) -> dict[str, object]:
    return {
        name: f"({len(value)} characters)" if name in _CONFIDENTIAL and isinstance(value, str) else value
        for name, value in args.items()
    }


def _key(script: Script) -> str:
    """Tells scripts apart, the same in every process: a changed script counts anew."""
    return msgspec.json.encode(script.faults).decode()
