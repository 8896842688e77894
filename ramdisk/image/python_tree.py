"""What the agent is made of in the image: its own rooms, the locked packages that these need, all compiled."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from ramdisk.image.architectures import Architecture, own_architecture
from ramdisk.image.lists import read_file
from ramdisk.image.programs import BuildError, run

__all__ = [
    "LIBRARY",
    "ROOMS",
    "compile_modules",
    "copy_rooms",
    "install_packages",
    "parse_python_version",
    "room_files",
    "try_imports",
]

LIBRARY = "usr/lib/rackwright/lib"
"""Below the root."""
ROOMS = ("protocol", "drivers", "agent", "ramdisk", "rackwright")
_ALIEN = ("ramdisk/image/",)
"""What no image needs: what it was built with."""
_TRIAL = """
import sys
sys.path.insert(0, {library!r})
for name in {modules!r}:
    try:
        __import__(name)
    except Exception as error:
        print("fault", f"{{name}}: {{error!r}}".replace("\\n", " "))
for module in list(sys.modules.values()):
    spec = getattr(module, "__spec__", None)
    for file in (getattr(spec, "cached", None), getattr(spec, "origin", None)):
        if file and file.endswith((".pyc", ".so")):
            print("file", file)
with open("/proc/self/maps") as maps:
    for file in sorted({{line.split(None, 5)[-1].strip() for line in maps if ".so" in line}}):
        print("file", file)
"""
_RECORDS = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")


def room_files() -> Iterator[tuple[str, Path]]:
    """Each file of our own that goes into the image: its path below the library, and where it is now. In order."""
    for room in ROOMS:
        spec = find_spec(room)
        if spec is None or not spec.submodule_search_locations:
            raise BuildError(f"the part {room} of this program is not installed here")
        folder = Path(spec.submodule_search_locations[0])
        for file in sorted(folder.rglob("*")):
            name = f"{room}/{file.relative_to(folder).as_posix()}"
            if file.is_file() and "__pycache__" not in name and not name.startswith(_ALIEN):
                yield name, file


def copy_rooms(root: Path) -> None:
    """Into the library of an image whose root is `root`."""
    for name, file in room_files():
        target = root / LIBRARY / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


def install_packages(root: Path, architecture: Architecture, python: str) -> None:
    """The locked wheels for `python` (3.11) on the image's machines. Raises BuildError, also without pip."""
    if find_spec("pip") is None:
        raise BuildError(f"{sys.executable} has no pip, which fetches the agent's packages: install it (python3-pip)")
    requirements = root.parent / "requirements.txt"
    requirements.write_text(read_file("requirements.txt"))
    try:
        run(
            [
                *(
                    sys.executable,
                    "-I",
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--disable-pip-version-check",
                    "--no-compile",
                ),
                *("--only-binary", ":all:", "--no-deps", "--require-hashes", "--requirement", requirements),
                *("--implementation", "cp", "--python-version", python, "--target", root / LIBRARY),
                *(word for platform in architecture.wheels for word in ("--platform", platform)),
            ]
        )
    finally:
        requirements.unlink()
    shutil.rmtree(root / LIBRARY / "bin", ignore_errors=True)
    for name in _RECORDS:
        for file in (root / LIBRARY).glob(f"*.dist-info/{name}"):
            file.unlink()


def compile_modules(root: Path, folders: Sequence[str], architecture: Architecture, python: str) -> None:
    """Compiles all modules below the folders. No start compares their times: nothing in the image ever changes.

    Raises BuildError where no interpreter of the image's version can be run here.
    """
    words = ["-m", "compileall", "-q", "-j", "1", "--invalidation-mode", "unchecked-hash", "-s", str(root), "-p", "/"]
    _python(root, architecture, python, *words, *(str(root / folder) for folder in folders))


def try_imports(root: Path, modules: Sequence[str], architecture: Architecture, python: str) -> list[str]:
    """Imports these one by one, with nothing but what is in the image; the files that were read, below `root`. None
    are known for machines whose programs do not run here. Raises BuildError that names every module that failed."""
    if architecture != own_architecture():
        return []
    program = _TRIAL.format(library=str(root / LIBRARY), modules=list(modules))
    said = _python(root, architecture, python, "-S", "-c", program).splitlines()
    faults = [line.removeprefix("fault ") for line in said if line.startswith("fault ")]
    if faults:
        raise BuildError("modules of the agent cannot be imported in the image: " + "; ".join(faults))
    files = dict.fromkeys(Path(line.removeprefix("file ")) for line in said if line.startswith("file "))
    inside = [file.resolve() for file in files if file.is_relative_to(root)]
    return sorted({str(file.relative_to(root.resolve())) for file in inside if file.is_file()})


def _python(root: Path, architecture: Architecture, python: str, *words: str) -> str:
    """The image's own interpreter, where its programs run here; else this host's of the same version."""
    settings = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1"}
    # Where in a line something was raised is a fifth of the compiled modules.
    settings["PYTHONNODEBUGRANGES"] = "1"
    if architecture == own_architecture():
        loader = root / architecture.loader
        started: list[str | Path] = [loader, "--library-path", loader.parent, root / f"usr/bin/python{python}"]
        return run([*started, *words], environment={**settings, "PYTHONHOME": str(root / "usr")})
    own = "{}.{}".format(*sys.version_info[:2]) == python
    name = sys.executable if own else shutil.which(f"python{python}")
    if name is None:
        raise BuildError(f"the modules for {architecture.name} are compiled by Python {python}, which is not here")
    return run([name, "-I", *words], environment=settings)


def parse_python_version(programs: Sequence[str]) -> str:
    """`3.11` of the names in a folder of programs. Raises BuildError unless there is one."""
    versions = [name.removeprefix("python") for name in programs if name.startswith("python3.")]
    if len(versions) != 1:
        raise BuildError(f"there must be one Python among the packages, and there are {len(versions)}")
    return versions[0]
