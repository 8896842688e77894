"""Prints what a tree of compiled Python modules needs from Debian, as the value of a Depends field.

The interpreter is pinned to the minor version that runs this. Libraries are found by the names that the modules carry
for the loader: wheels bring everything but a few libraries that every Linux has (PEP 600 lists them).
"""

import re
import sys
from pathlib import Path

# The loader's name for a library, and the Debian package that has it.
_LIBRARIES = {b"libstdc++.so.6": "libstdc++6", b"libgcc_s.so.1": "libgcc-s1", b"libz.so.1": "zlib1g"}
_GLIBC = re.compile(rb"\0GLIBC_(\d+)\.(\d+)")


def depends(tree: Path) -> str:
    """The field's value, in a fixed order."""
    glibc, libraries = [(2, 28)], set[str]()
    for module in tree.rglob("*.so*"):
        content = module.read_bytes()
        glibc += [(int(major), int(minor)) for major, minor in _GLIBC.findall(content)]
        libraries |= {package for name, package in _LIBRARIES.items() if b"\0" + name + b"\0" in content}
    major, minor = sys.version_info[:2]
    return ", ".join(
        [
            f"python3 (>= {major}.{minor})",
            f"python3 (<< {major}.{minor + 1})",
            "libc6 (>= {}.{})".format(*max(glibc)),
            *sorted(libraries),
        ]
    )


if __name__ == "__main__":
    print(depends(Path(sys.argv[1])))
