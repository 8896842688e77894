"""The peer: OpenStack Ironic, its API and conductor in one service, as its own documentation runs it standalone.

It lies in a virtual environment of its own, `.peers/ironic`, made from `requirements/ironic.txt` at the first use. It
runs without authentication, on SQLite in a folder of ours, and with no message bus: `rpc_transport = none`. Nodes are
asked over its REST API, as its own clients do.
"""

import contextlib
import http.client
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from tests.e2e.processes import free_port

__all__ = ["Ironic", "installed", "running"]

_ENVIRONMENT = Path(".peers/ironic")
_REQUIREMENTS = Path("requirements/ironic.txt")
_START_SECONDS = 60.0
_PATIENCE = 300.0
_POLL_SECONDS = 0.2
_CALLERS = 8
"""Its server keeps ten connections at the most, and cuts others off in the middle of a request."""
FAKE = {f"{part}_interface": "fake" for part in ("boot", "deploy", "inspect", "management", "power")}
"""Interfaces of fake-hardware that do nothing, at once."""


def installed() -> Path:
    """The folder of its virtual environment; installs it where it is absent or older than its requirements."""
    stamp = _ENVIRONMENT / ".installed"
    if not stamp.exists() or stamp.stat().st_mtime < _REQUIREMENTS.stat().st_mtime:
        done = subprocess.run(
            ["packaging/setup/venv.sh", _ENVIRONMENT, _REQUIREMENTS], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"Ironic could not be installed: {done.stderr[-2000:]}")
    return _ENVIRONMENT


@contextlib.contextmanager
def running(
    folder: Path,
    *,
    drivers: Sequence[str] = ("fake-hardware",),
    power_sync_seconds: int = 3600,
    sync_workers: int = 8,
) -> Iterator["Ironic"]:
    """A service that answers; it ends with the block. `drivers` are its hardware types."""
    binaries = installed() / "bin"
    port = free_port()
    file = folder / "ironic.conf"
    file.write_text(_configuration(folder, port, drivers, power_sync_seconds, sync_workers))
    schema = [f"{binaries}/ironic-dbsync", "--config-file", str(file), "create_schema"]
    subprocess.run(schema, check=True, capture_output=True, timeout=120)
    with (folder / "ironic.out").open("wb") as output:
        process = subprocess.Popen([binaries / "ironic", "--config-file", file], stdout=output, stderr=output)
    try:
        ironic = Ironic(process.pid, port)
        _wait_until_up(ironic, process, folder)
        yield ironic
    finally:
        _end(process)


class Ironic:
    """Its REST API, and what its processes cost."""

    def __init__(self, pid: int, port: int) -> None:
        self._process = psutil.Process(pid)
        self._port = port
        self._local = threading.local()

    @property
    def memory(self) -> int:
        """Bytes that all its processes hold; pages that they share are counted once (the kernel's PSS)."""
        return sum(int(process.memory_full_info().pss) for process in self._processes())

    @property
    def cpu(self) -> float:
        """Seconds of processor time so far, of all its processes."""
        times = [process.cpu_times() for process in self._processes()]
        return sum(float(each.user + each.system) for each in times)

    def call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """One request; waits while a node is locked or no worker is free, as its clients do. Raises RuntimeError."""
        end = time.monotonic() + _PATIENCE
        while True:
            status, answer = self._ask(method, path, body)
            if status < 400:
                return answer
            if status not in (409, 503) or time.monotonic() > end:
                raise RuntimeError(f"Ironic answers {method} {path} with {status}: {str(answer)[:500]}")
            time.sleep(_POLL_SECONDS)

    def nodes(self, fields: str = "name,provision_state,power_state,last_error") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("GET", f"/v1/nodes?limit=2000&fields={fields}")["nodes"]
        return found

    def enrol(
        self,
        names: Sequence[str],
        *,
        driver: str = "fake-hardware",
        driver_info: Callable[[str], dict[str, object]] | None = None,
        interfaces: dict[str, str] | None = None,
    ) -> None:
        """Makes the nodes. `interfaces` are those of fake-hardware unless they are given."""
        parts = FAKE if interfaces is None else interfaces

        def make(name: str) -> None:
            info = {} if driver_info is None else driver_info(name)
            self.call("POST", "/v1/nodes", {"name": name, "driver": driver, "driver_info": info, **parts})

        _each(make, names)

    def provision(self, names: Sequence[str], target: str, state: str) -> float:
        """Asks for `target` of all nodes at once; seconds until each is in `state`. Raises RuntimeError."""
        started = time.perf_counter()
        _each(lambda name: self.call("PUT", f"/v1/nodes/{name}/states/provision", {"target": target}), names)
        left, end = set(names), time.monotonic() + _PATIENCE
        while left:
            now = {node["name"]: node for node in self.nodes()}
            failed = [now[name] for name in left if str(now[name]["provision_state"]).endswith("failed")]
            if failed or time.monotonic() > end:
                raise RuntimeError(f"{len(left)} nodes did not become {state}, such as {(failed or list(now))[0]}")
            left = {name for name in left if now[name]["provision_state"] != state}
            if left:
                time.sleep(_POLL_SECONDS)
        return time.perf_counter() - started

    def _ask(self, method: str, path: str, body: object) -> tuple[int, dict[str, Any]]:
        """Each thread keeps a connection, as the clients' session pools do."""
        if not hasattr(self._local, "connection"):
            self._local.connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        connection: http.client.HTTPConnection = self._local.connection
        headers = {"X-OpenStack-Ironic-API-Version": "latest", "Content-Type": "application/json"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
        except (ConnectionError, http.client.HTTPException):
            connection.close()
            if method == "GET":
                return 503, {"text": "the connection was closed"}
            raise
        try:
            return answer.status, json.loads(text) if text else {}
        except ValueError:
            return answer.status, {"text": text.decode(errors="replace")}

    def _processes(self) -> list[psutil.Process]:
        return [self._process, *self._process.children(recursive=True)]


def _each(act: Callable[[str], object], names: Sequence[str]) -> None:
    with ThreadPoolExecutor(_CALLERS) as pool:
        list(pool.map(act, names))


def _wait_until_up(ironic: Ironic, process: subprocess.Popen[bytes], folder: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError, http.client.HTTPException, RuntimeError):
            if ironic.call("GET", "/v1/drivers")["drivers"]:
                return
        time.sleep(_POLL_SECONDS)
    log = folder / "ironic.log"
    said = (log if log.exists() else folder / "ironic.out").read_text(errors="replace")
    raise RuntimeError(f"Ironic did not come up within {_START_SECONDS:g} s: {said[-3000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """The service and the workers that it has forked."""
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        _, left = psutil.wait_procs([psutil.Process(process.pid), *children], timeout=10)
        for each in left:
            each.kill()
    process.wait()


def _configuration(folder: Path, port: int, drivers: Sequence[str], sync_seconds: int, sync_workers: int) -> str:
    return f"""\
[DEFAULT]
auth_strategy = noauth
my_ip = 127.0.0.1
host = standalone
rpc_transport = none
log_file = {folder}/ironic.log
state_path = {folder}/lib
enabled_hardware_types = {",".join(drivers)}
enabled_bios_interfaces = fake,redfish,no-bios
enabled_boot_interfaces = fake,redfish-virtual-media
enabled_console_interfaces = fake,no-console
enabled_deploy_interfaces = fake,direct
enabled_firmware_interfaces = fake,no-firmware
enabled_inspect_interfaces = fake,redfish,no-inspect
enabled_management_interfaces = fake,redfish,ipmitool
enabled_network_interfaces = noop
enabled_power_interfaces = fake,redfish,ipmitool
enabled_raid_interfaces = fake,no-raid
enabled_rescue_interfaces = fake,no-rescue
enabled_storage_interfaces = noop
enabled_vendor_interfaces = fake,redfish,ipmitool,no-vendor
default_network_interface = noop
[api]
host_ip = 127.0.0.1
port = {port}
[conductor]
automated_clean = False
sync_power_state_interval = {sync_seconds}
sync_power_state_workers = {sync_workers}
workers_pool_size = 300
max_concurrent_deploy = 1000
[database]
connection = sqlite:///{folder}/ironic.sqlite
[fake]
power_delay = 0
deploy_delay = 0
[deploy]
http_root = {folder}/http
http_url = http://127.0.0.1:{port}
[oslo_concurrency]
lock_path = {folder}/locks
[oslo_messaging_notifications]
driver = noop
{"".join(f"[{name}]{chr(10)}auth_type = none{chr(10)}" for name in _SERVICES)}\
[nova]
send_power_notifications = False
"""


_SERVICES = ("service_catalog", "swift", "inspector", "neutron", "glance", "cinder")
"""Of OpenStack's other services none is there."""
