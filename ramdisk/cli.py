"""`rackwright ramdisk`: what a machine without a system is started with, and the agent in it.

What is heavy is loaded inside the commands, so that help and completion are quick.
"""

from pathlib import Path

import click

__all__ = ["ramdisk"]


@click.group(no_args_is_help=True)
def ramdisk() -> None:
    """The system that a machine is started with to be inspected, erased and installed."""


@ramdisk.command("run")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/run/rackwright"),
    show_default=True,
    help="Where its identity, its journal and its leases lie: in memory.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Of the log on standard error.",
)
def run_command(state_dir: Path, log_level: str) -> None:
    """Run the agent of a ramdisk: bring up the network, join by this boot's ticket, and wait for orders.

    It sets up the machine that it runs on, and is meant for the ramdisk's own init. It ends by SIGTERM, or when a
    part of it failed; then it is to be started again, and repeats nothing.
    """
    from agent.errors import AgentError
    from ramdisk.service import run

    try:
        run(state_dir, log_level)
    except AgentError as error:
        click.echo(f"error: {error.code}: {error.message}", err=True)
        raise SystemExit(1) from None


@ramdisk.command("build")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("dist/ramdisk"),
    show_default=True,
    help="The folder for the image and what belongs to it.",
)
@click.option(
    "--iso",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The image's own path, in place of --output; the rest lies beside it.",
)
@click.option("--architecture", metavar="A", help="x86_64 or aarch64.  [default: this host's]")
@click.option(
    "--with-firmware", is_flag=True, help="Also the files that NICs and controllers ask for; not all are free."
)
@click.option("--fast", is_flag=True, help="Compress less: for tries.")
@click.option("--append", metavar="WORDS", default="", help="More words for the kernel's command line.")
@click.option(
    "--packages",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Debian packages in exactly these versions: the list beside an earlier image.",
)
@click.option("--mirror", metavar="URL", help="Of Debian.  [default: the one of this host's own apt]")
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("build/ramdisk"),
    show_default=True,
    help="Where fetched packages are kept, and what is being made lies.",
)
def build_command(
    output: Path,
    iso: Path | None,
    architecture: str | None,
    with_firmware: bool,
    fast: bool,
    append: str,
    packages: Path | None,
    mirror: str | None,
    work: Path,
) -> None:
    """Build the bootable image from Debian's packages and this program; no root is needed.

    The same packages and the same program give the same bytes.
    """
    from ramdisk.image.build import BuildOptions, architecture_named, build, made_files
    from ramdisk.image.debian import parse_packages

    exactly = () if packages is None else parse_packages(packages.read_text(encoding="utf-8"))
    options = BuildOptions(
        architecture=architecture_named(architecture),
        fast=fast,
        firmware=with_firmware,
        exactly=exactly,
        words=tuple(append.split()),
        mirror=mirror,
    )
    folder, names = (output, {}) if iso is None else (iso.parent, {"iso": iso.name})
    description = build(folder, work, options, lambda step: click.echo(f"{step} …", err=True), **names)
    made = made_files(description)
    widest = max(len(str(file)) for file in made)
    for file in made:
        click.echo(f"{file!s:{widest}}  {file.stat().st_size / 1e6:7.3f} MB")
