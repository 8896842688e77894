"""The agent of a ramdisk as a process of the tests: all that it sees of a machine lies in one folder."""

import sys
from pathlib import Path

from drivers.linux.host import Host
from ramdisk.service import run


def main(folder: Path) -> None:
    machine = folder / "machine"
    host = Host(machine / "sys", machine / "proc", machine / "dev", folder / "state" / "disks")
    run(folder / "state", "debug", host=host, root=folder / "root")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
