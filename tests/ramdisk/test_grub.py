"""The kernel that GRUB would start, by the configurations of distributions: each is a small whole system."""

from pathlib import Path

import pytest

from ramdisk.boot_choice import BootChoice, NoChoice
from ramdisk.grub import grub_choice
from ramdisk.grub_words import evaluate_test, parse_environment_block
from tests.ramdisk.systems import System, grubenv

HEADER = """
if [ -s $prefix/grubenv ]; then
  set have_grubenv=true
  load_env
fi
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
   set next_entry=
   save_env next_entry
   set boot_once=true
else
   set default="%s"
fi

if [ x"${feature_menuentry_id}" = xy ]; then
  menuentry_id_option="--id"
else
  menuentry_id_option=""
fi
export menuentry_id_option
if [ "${prev_saved_entry}" ]; then
  set saved_entry="${prev_saved_entry}"
  save_env saved_entry
fi
function savedefault {
  if [ -z "${boot_once}" ]; then
    saved_entry="${chosen}"
    save_env saved_entry
  fi
}
function load_video {
  if [ x$feature_all_video_module = xy ]; then
    insmod all_video
  else
    insmod efi_gop
    insmod vga
  fi
}
if loadfont unicode ; then
  set gfxmode=auto
  load_video
  insmod gfxterm
fi
terminal_output gfxterm
if [ "${recordfail}" = 1 ] ; then
  set timeout=30
else
  if [ x$feature_timeout_style = xy ] ; then
    set timeout_style=menu
    set timeout=5
  # Without it, a timeout of 0 shows nothing.
  else
    set timeout=5
  fi
fi
"""

ENTRY = """
%(kind)s '%(title)s' --class gnu-linux --class os $menuentry_id_option '%(id)s' {
  load_video
  insmod gzio
  if [ x$grub_platform = xxen ]; then insmod xzio; insmod lzopio; fi
  insmod part_gpt
  insmod ext2
  set root='hd0,gpt3'
  if [ x$feature_platform_search_hint = xy ]; then
    search --no-floppy --fs-uuid --set=root --hint-bios=hd0,gpt3 --hint-efi=hd0,gpt3  %(uuid)s
  else
    search --no-floppy --fs-uuid --set=root %(uuid)s
  fi
  echo  'Loading Linux %(version)s ...'
  linux  %(folder)s/vmlinuz-%(version)s root=UUID=6d651fcb-6873-4d7a-b67e-d0a2b88c1d3d ro  %(words)s
  echo  'Loading initial ramdisk ...'
  initrd  %(folder)s/initrd.img-%(version)s
}
"""


def entry(title: str, id_: str, version: str, *, folder: str = "/boot", words: str = "quiet", uuid: str = "") -> str:
    values = {"kind": "menuentry", "title": title, "id": id_, "version": version, "folder": folder, "words": words}
    return ENTRY % {**values, "uuid": uuid or System.ROOT}


def debian_menu(default: str = "0", **options: str) -> str:
    """As grub-mkconfig of Debian 12 writes it: the newest kernel, and a submenu with all of them."""
    newest = entry("Debian GNU/Linux", "gnulinux-simple-1", "6.1.0-57-amd64", **options)
    inside = entry("Debian GNU/Linux, with Linux 6.1.0-57-amd64", "gnulinux-6.1.0-57", "6.1.0-57-amd64", **options)
    rescue = entry(
        "Debian GNU/Linux, with Linux 6.1.0-57-amd64 (recovery mode)",
        "gnulinux-6.1.0-57-recovery",
        "6.1.0-57-amd64",
        **{**options, "words": "single"},
    )
    older = entry("Debian GNU/Linux, with Linux 6.1.0-9-amd64", "gnulinux-6.1.0-9", "6.1.0-9-amd64", **options)
    return (
        HEADER % default
        + newest
        + "submenu 'Advanced options for Debian GNU/Linux' $menuentry_id_option 'gnulinux-advanced-1' {"
        + inside
        + rescue
        + older
        + "}\n"
        + 'if [ "$grub_platform" = "efi" ]; then\n'
        + "\tmenuentry 'UEFI Firmware Settings' $menuentry_id_option 'uefi-firmware' {\n\t\tfwsetup\n\t}\nfi\n"
    )


STUB = """search.fs_uuid %s root hd0,gpt3
set prefix=($root)'%s/grub'
configfile $prefix/grub.cfg
"""


@pytest.fixture
def debian(tmp_path: Path) -> System:
    system = System(tmp_path / "debian")
    system.kernels("6.1.0-57-amd64", "6.1.0-9-amd64")
    system.write("/boot/efi/EFI/debian/grub.cfg", STUB % (System.ROOT, "/boot"))
    return system.write("/boot/grub/grub.cfg", debian_menu())


def choice(system: System, *, uefi: bool = True, wanted: str | None = None) -> BootChoice:
    return grub_choice(system.volumes, uefi=uefi, wanted=wanted)


@pytest.mark.parametrize("uefi", [True, False])
def test_debian_starts_the_first_entry(debian: System, uefi: bool) -> None:
    found = choice(debian, uefi=uefi)
    assert found.title == "Debian GNU/Linux"
    assert str(found.kernel) == "sda3:/boot/vmlinuz-6.1.0-57-amd64"
    assert [str(initrd) for initrd in found.initrds] == ["sda3:/boot/initrd.img-6.1.0-57-amd64"]
    assert found.command_line == f"root=UUID={System.ROOT} ro quiet"


@pytest.mark.parametrize(
    ("default", "kernel"),
    [
        ("1>2", "6.1.0-9-amd64"),
        ("gnulinux-advanced-1>gnulinux-6.1.0-9", "6.1.0-9-amd64"),
        (
            "Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux 6.1.0-9-amd64",
            "6.1.0-9-amd64",
        ),
        ("1", "6.1.0-57-amd64"),
        ("gnulinux-that-was-removed", "6.1.0-57-amd64"),
        ("17", "6.1.0-57-amd64"),
    ],
)
def test_the_default_may_be_a_number_an_id_or_a_title_also_in_a_submenu(
    debian: System, default: str, kernel: str
) -> None:
    debian.write("/boot/grub/grub.cfg", debian_menu(default))
    assert str(choice(debian).kernel).endswith(f"vmlinuz-{kernel}")


def test_a_saved_default_and_an_entry_for_one_start_are_read_from_the_environment_block(debian: System) -> None:
    debian.write("/boot/grub/grub.cfg", debian_menu("${saved_entry}"))
    debian.write("/boot/grub/grubenv", grubenv(saved_entry="gnulinux-advanced-1>gnulinux-6.1.0-9"))
    assert str(choice(debian).kernel).endswith("vmlinuz-6.1.0-9-amd64")
    debian.write("/boot/grub/grubenv", grubenv(saved_entry="0", next_entry="gnulinux-advanced-1>1"))
    assert choice(debian).command_line.endswith("ro single")


def test_an_entry_can_be_asked_for_by_title_or_id(debian: System) -> None:
    assert str(choice(debian, wanted="gnulinux-6.1.0-9").kernel).endswith("6.1.0-9-amd64")
    wanted = "Debian GNU/Linux, with Linux 6.1.0-57-amd64 (recovery mode)"
    assert choice(debian, wanted=wanted).title == wanted
    with pytest.raises(NoChoice, match="no entry 'Windows'; there are 'Debian GNU/Linux', "):
        choice(debian, wanted="Windows")


def test_a_default_whose_kernel_is_gone_is_followed_by_the_fallback(debian: System, tmp_path: Path) -> None:
    debian.write("/boot/grub/grub.cfg", debian_menu() + "set fallback='gnulinux-advanced-1>gnulinux-6.1.0-9'\n")
    (tmp_path / "debian" / "root" / "boot" / "vmlinuz-6.1.0-57-amd64").unlink()
    assert str(choice(debian).kernel).endswith("6.1.0-9-amd64")


def test_without_a_fallback_a_missing_kernel_is_named(debian: System, tmp_path: Path) -> None:
    (tmp_path / "debian" / "root" / "boot" / "initrd.img-6.1.0-57-amd64").unlink()
    with pytest.raises(NoChoice, match=r"'Debian GNU/Linux' needs sda3:/boot/initrd\.img-6\.1\.0-57-amd64"):
        choice(debian)


def test_a_boot_partition_of_its_own_has_the_paths_without_boot(tmp_path: Path) -> None:
    system = System(tmp_path / "s", separate_boot=True).kernels("6.1.0-57-amd64", "6.1.0-9-amd64")
    system.write("/boot/efi/EFI/debian/grub.cfg", STUB % (System.BOOT, ""))
    system.write("/boot/grub/grub.cfg", debian_menu(folder="", uuid=System.BOOT))
    assert str(choice(system).kernel) == "sda2:/vmlinuz-6.1.0-57-amd64"


UBUNTU = """
set linux_gfx_mode=auto
if [ "${recordfail}" != 1 ]; then
  if [ -e ${prefix}/gfxblacklist.txt ]; then
    if [ ${grub_platform} != pc ]; then
      set linux_gfx_mode=keep
    elif hwmatch ${prefix}/gfxblacklist.txt 3; then
      if [ ${match} = 0 ]; then set linux_gfx_mode=keep; else set linux_gfx_mode=text; fi
    else
      set linux_gfx_mode=text
    fi
  else
    set linux_gfx_mode=keep
  fi
else
  set linux_gfx_mode=text
fi
export linux_gfx_mode
function gfxmode {
  set gfxpayload="${1}"
  if [ "${1}" = "keep" ]; then
    set vt_handoff=vt.handoff=7
  else
    set vt_handoff=
  fi
}
function recordfail {
  set recordfail=1
  if [ -n "${have_grubenv}" ]; then if [ -z "${boot_once}" ]; then save_env recordfail; fi; fi
}
# The environment is only read, never trusted for words of its own.
if [ -s $prefix/custom.cfg ]; then source $prefix/custom.cfg; fi
set partuuid=4f68bce3-e8cd-4db1-96e7-fbcaf984b709
if [ "${initrdfail}" = 2 ]; then set initrdfail=; elif [ "${initrdfail}" = 1 ]; then set partuuid=; fi
menuentry 'Ubuntu' --class ubuntu $menuentry_id_option 'gnulinux-simple-cloudimg' {
  recordfail
  gfxmode $linux_gfx_mode
  search --no-floppy --label --set=root cloudimg-rootfs
  if [ "${initrdfail}" = 1 ]; then
    echo  'GRUB_FORCE_PARTUUID set, attempting initrdless boot.'
    linux  /boot/vmlinuz-5.15.0-91-generic root=PARTUUID=x ro  console=tty1 console=ttyS0 panic=-1
  else
    linux  /boot/vmlinuz-5.15.0-91-generic root=LABEL=cloudimg-rootfs ro  console=tty1 console=ttyS0 $vt_handoff
    initrd  /boot/microcode.cpio /boot/initrd.img-5.15.0-91-generic
  fi
}
"""


def test_ubuntus_cloud_image_finds_its_root_by_label_and_loads_two_initrds(tmp_path: Path) -> None:
    system = System(tmp_path / "s").kernels("5.15.0-91-generic").write("/boot/microcode.cpio")
    system.write("/boot/grub/grub.cfg", HEADER % "0" + UBUNTU)
    found = choice(system)
    assert found.command_line == "root=LABEL=cloudimg-rootfs ro console=tty1 console=ttyS0 vt.handoff=7"
    assert [initrd.path for initrd in found.initrds] == ["/boot/microcode.cpio", "/boot/initrd.img-5.15.0-91-generic"]


def test_a_failed_start_before_is_not_taken_for_one(tmp_path: Path) -> None:
    system = System(tmp_path / "s").kernels("5.15.0-91-generic").write("/boot/microcode.cpio")
    system.write("/boot/grub/grub.cfg", HEADER % "0" + UBUNTU).write("/boot/grub/grubenv", grubenv(recordfail="1"))
    assert choice(system).command_line.endswith("console=ttyS0")


FEDORA = """
set pager=1
if [ -f ${config_directory}/grubenv ]; then
  load_env -f ${config_directory}/grubenv
elif [ -s $prefix/grubenv ]; then
  load_env
fi
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
   set next_entry=
   save_env next_entry
   set boot_once=true
else
   set default="${saved_entry}"
fi
insmod part_gpt
insmod xfs
search --no-floppy --fs-uuid --set=root %(boot)s
insmod part_gpt
insmod fat
search --no-floppy --fs-uuid --set=boot 7B1E-4C2A
if [ -z "${kernelopts}" ]; then
  set kernelopts="root=/dev/mapper/rhel-root ro crashkernel=auto rd.lvm.lv=rhel/root "
fi
insmod blscfg
blscfg
if [ "${boot_success}" = "1" -o "${boot_indeterminate}" = "1" ]; then
  set last_boot_ok=1
else
  set last_boot_ok=0
fi
menuentry 'UEFI Firmware Settings' $menuentry_id_option 'uefi-firmware' {
  fwsetup
}
if [ -f  ${config_directory}/custom.cfg ]; then
  source ${config_directory}/custom.cfg
fi
"""

RHEL_STUB = """search --no-floppy --fs-uuid --set=dev %s
set prefix=($dev)/grub2

export $prefix
configfile $prefix/grub.cfg
"""

ID = "8fcc53fd2f4f4b5e940bbef805c431eb"


def rhel(folder: Path, options: str = "root=/dev/mapper/rhel-root ro $tuned_params") -> System:
    """As RHEL 9 and Fedora: entries of their own, the default by its id in grubenv."""
    system = System(folder, separate_boot=True, kind="xfs")
    for version in ("5.14.0-70.el9.x86_64", "5.14.0-362.el9.x86_64", "0-rescue"):
        system.kernels(version, initrd="/boot/initramfs-{}.img")
        text = (
            f"title Red Hat Enterprise Linux ({version})\nversion {version}\nlinux /vmlinuz-{version}\n"
            f"initrd /initramfs-{version}.img $tuned_initrd\noptions {options}\n"
            "grub_users $grub_users\ngrub_arg --unrestricted\ngrub_class rhel\n"
        )
        system.write(f"/boot/loader/entries/{ID}-{version}.conf", text)
    system.write("/boot/efi/EFI/redhat/grub.cfg", RHEL_STUB % System.BOOT)
    return system.write("/boot/grub2/grub.cfg", FEDORA % {"boot": System.BOOT})


def test_rhel_starts_the_saved_entry_of_the_boot_loader_specification(tmp_path: Path) -> None:
    system = rhel(tmp_path / "s")
    system.write("/boot/grub2/grubenv", grubenv(saved_entry=f"{ID}-5.14.0-70.el9.x86_64", tuned_params="skew_tick=1"))
    found = choice(system)
    assert str(found.kernel) == "sda2:/vmlinuz-5.14.0-70.el9.x86_64"
    assert [initrd.path for initrd in found.initrds] == ["/initramfs-5.14.0-70.el9.x86_64.img"]
    assert found.command_line == "root=/dev/mapper/rhel-root ro skew_tick=1"
    assert found.loader == "grub"


def test_without_a_saved_entry_the_newest_version_is_first_and_counts_as_numbers(tmp_path: Path) -> None:
    assert choice(rhel(tmp_path / "s")).kernel.path == "/vmlinuz-5.14.0-362.el9.x86_64"


def test_rhel_8_takes_its_words_from_the_environment_block_or_else_from_the_script(tmp_path: Path) -> None:
    system = rhel(tmp_path / "s", "$kernelopts $tuned_params")
    assert choice(system).command_line == "root=/dev/mapper/rhel-root ro crashkernel=auto rd.lvm.lv=rhel/root"
    system.write("/boot/grub2/grubenv", grubenv(kernelopts="root=UUID=1 ro console=ttyS0 "))
    assert choice(system).command_line == "root=UUID=1 ro console=ttyS0"


def test_opensuse_follows_a_script_per_snapshot_and_boots_from_a_subvolume(tmp_path: Path) -> None:
    system = System(tmp_path / "s", kind="btrfs")
    system.kernels("6.4.0-default", kernel="/boot/vmlinuz-{}", initrd="/boot/initrd-{}")
    system.write(
        "/boot/grub2/grub.cfg",
        'set btrfs_relative_path="y"\nexport btrfs_relative_path\n'
        'if [ -f "/.snapshots/grub-snapshot.cfg" ]; then source "/.snapshots/grub-snapshot.cfg"; fi\n'
        + HEADER
        % "${saved_entry}"
        + "menuentry 'openSUSE Leap 15.6'  --class opensuse $menuentry_id_option 'gnulinux-simple-1' {\n"
        f"  search --no-floppy --fs-uuid --set=root {System.ROOT}\n"
        "  linux /boot/vmlinuz-6.4.0-default root=UUID=1  ${extra_cmdline} splash=silent mitigations=auto\n"
        "  initrd /boot/initrd-6.4.0-default\n}\n",
    )
    assert choice(system).command_line == "root=UUID=1 splash=silent mitigations=auto"


def test_the_file_on_the_system_partition_may_be_the_whole_configuration(tmp_path: Path) -> None:
    system = System(tmp_path / "s").kernels("6.1.0-57-amd64", "6.1.0-9-amd64")
    system.write("/boot/efi/EFI/centos/grub.cfg", debian_menu())
    assert choice(system).title == "Debian GNU/Linux"
    with pytest.raises(NoChoice, match=r"there is no /boot/grub/grub\.cfg"):
        choice(system, uefi=False)


def test_a_system_without_a_menu_starts_what_the_script_loads(tmp_path: Path) -> None:
    system = System(tmp_path / "s").kernels("6.6")
    system.write("/boot/grub/grub.cfg", "linux /boot/vmlinuz-6.6 root=/dev/vda1\ninitrd /boot/initrd.img-6.6\nboot\n")
    assert choice(system).command_line == "root=/dev/vda1"


def test_links_of_the_installed_system_stay_inside_it(tmp_path: Path) -> None:
    system = System(tmp_path / "s").kernels("6.6").write("/boot/grub/grub.cfg", "linux /vmlinuz root=a\n")
    system.link("/vmlinuz", "/boot/vmlinuz-6.6")
    assert choice(system).kernel.file == tmp_path / "s" / "root" / "boot" / "vmlinuz-6.6"
    system.link("/boot/vmlinuz-evil", "/../../../../etc/passwd").link("/boot/round", "/boot/round")
    for path in ("/boot/vmlinuz-evil", "/boot/round"):
        system.write("/boot/grub/grub.cfg", f"linux {path} root=a\n")
        with pytest.raises(NoChoice, match="not there"):
            choice(system)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "menuentry 'Windows' { chainloader /EFI/Microsoft/Boot/bootmgfw.efi\n}\n",
            "no Linux: it says chainlo",
        ),
        (
            "set root='lvmid/abc/def'\nmenuentry a {\nlinux /vmlinuz\n}\n",
            "'lvmid/abc/def', which is none of",
        ),
        ("menuentry 'a {\n", "line 1: a ' is not closed"),
        ("if true; then\n", "'fi' is missing"),
        ("fi\n", "'fi' stands alone"),
        ("while true; do set a=b; done\n", "does not come to an end"),
        ("while do done\n", "does not come to an end"),
        ("function f { f; }\nf\n", "calls itself without end"),
        ("configfile /boot/grub/grub.cfg\n", "lead to each other without end"),
        ("submenu s { true; }\n", "leads nowhere|is empty"),
        ("", "it has no menu"),
    ],
)
def test_what_starts_no_linux_says_why(tmp_path: Path, script: str, said: str) -> None:
    system = System(tmp_path / "s").write("/boot/grub/grub.cfg", script)
    with pytest.raises(NoChoice, match=said):
        choice(system)


@pytest.mark.parametrize(
    ("words", "holds"),
    [
        (["a", "=", "a"], True),
        (["a", "!=", "a"], False),
        (["-z", ""], True),
        (["-n", "x", "-a", "2", "-gt", "10"], False),
        (["!", "-f", "/there"], False),
        (["(", "a", "=", "b", "-o", "c", ")", "-a", "-d", "/there"], True),
        ([""], False),
        (["x"], True),
        ([], False),
        (["a", "b"], False),
    ],
)
def test_tests_are_evaluated_as_grub_does(words: list[str], holds: bool) -> None:
    assert evaluate_test(words, lambda _letter, path: path == "/there") is holds


def test_an_environment_block_that_is_none_gives_nothing() -> None:
    assert parse_environment_block(b"saved_entry=1\n") == {}
    assert parse_environment_block(grubenv(a="b=c")) == {"a": "b=c"}
