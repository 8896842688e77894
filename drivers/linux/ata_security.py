"""ATA's own erasure (ACS-4, 7.45): what `hdparm -I` says of a drive's security, and the way to an erased drive.

A drive whose erasure was broken off keeps the password and refuses everything until it is given again. The password
is always the same, and known: after a crash the drive can be freed, by us or by hand.
"""

import re
from dataclasses import dataclass

from drivers.linux.host import Host
from protocol.errors import ErrorCode, OperationError

__all__ = ["PASSWORD", "Security", "erase", "parse_security"]

PASSWORD = "rackwright"  # noqa: S105
_SECONDS = 60.0
_ESTIMATE = re.compile(r"(\d+)\s*min for (ENHANCED )?SECURITY ERASE UNIT")
_WORD = re.compile(r"^(?P<no>not)?\s*(?P<what>supported: enhanced erase|supported|enabled|locked|frozen)\b")


@dataclass(frozen=True, slots=True)
class Security:
    """`minutes`: what the drive says that an erasure takes; None where it does not say."""

    supported: bool = False
    enabled: bool = False
    locked: bool = False
    frozen: bool = False
    enhanced: bool = False
    minutes: int | None = None
    enhanced_minutes: int | None = None

    @property
    def obstacle(self) -> str | None:
        """Why the drive cannot be asked to erase itself; None where it can."""
        if not self.supported:
            return "the drive has no security feature set"
        if self.frozen:
            return "the firmware has frozen the drive's security: a power cycle of the drive alone would lift that"
        return None


def parse_security(words: str) -> Security:
    """The section `Security:` of `hdparm -I`. Pure."""
    section = words.partition("\nSecurity:")[2]
    facts: dict[str, bool] = {}
    for line in section.splitlines()[1:]:
        if line and not line[0].isspace():
            break
        match = _WORD.match(line.strip().replace("\t", " "))
        if match is not None:
            facts.setdefault(match["what"], match["no"] is None)
    estimates = {bool(match[2]): int(match[1]) for match in _ESTIMATE.finditer(section)}
    return Security(
        supported=facts.get("supported", False),
        enabled=facts.get("enabled", False),
        locked=facts.get("locked", False),
        frozen=facts.get("frozen", False),
        enhanced=facts.get("supported: enhanced erase", False),
        minutes=estimates.get(False),
        enhanced_minutes=estimates.get(True),
    )


async def erase(host: Host, path: str, timeout: float) -> str:
    """Has the drive erase itself; how, in words.

    Raises OperationError: UNSUPPORTED (not possible, and nothing was changed: another way may be tried), CONFLICT
    (the drive is locked with a password that is not ours, so that no way is left), NOT_APPLIED (it failed). After a
    failure the password is taken off again.
    """
    host.need("hdparm", "the secure erasure of ATA drives")
    security = await _read(host, path)
    if security.enabled or security.locked:
        security = await _freed(host, path)
    obstacle = security.obstacle
    if obstacle is not None:
        raise OperationError(ErrorCode.UNSUPPORTED, obstacle)
    given = await host.run("hdparm", "--user-master", "u", "--security-set-pass", PASSWORD, path, timeout=_SECONDS)
    if given.code or not (await _read(host, path)).enabled:
        raise OperationError(
            ErrorCode.UNSUPPORTED, f"the drive takes no password, so it erases nothing: {given.words}"
        )
    verb = "--security-erase-enhanced" if security.enhanced else "--security-erase"
    try:
        done = await host.run("hdparm", "--user-master", "u", verb, PASSWORD, path, timeout=timeout)
        after = await _read(host, path)
        if done.code or after.enabled:
            raise OperationError(ErrorCode.NOT_APPLIED, f"the drive did not erase itself: {done.words}")
    except OperationError:
        await host.run("hdparm", "--user-master", "u", "--security-disable", PASSWORD, path, timeout=_SECONDS)
        raise
    return "ATA secure erase (enhanced)" if security.enhanced else "ATA secure erase"


async def _read(host: Host, path: str) -> Security:
    told = await host.run("hdparm", "-I", path, timeout=_SECONDS)
    return parse_security(told.out)


async def _freed(host: Host, path: str) -> Security:
    """Out of the state that a broken-off erasure leaves. Raises OperationError CONFLICT."""
    await host.run("hdparm", "--user-master", "u", "--security-unlock", PASSWORD, path, timeout=_SECONDS)
    off = await host.run("hdparm", "--user-master", "u", "--security-disable", PASSWORD, path, timeout=_SECONDS)
    security = await _read(host, path)
    if security.enabled or security.locked:
        raise OperationError(
            ErrorCode.CONFLICT,
            f"{path} is protected by a password that this program did not set ({off.words}): take it off with "
            f"hdparm --security-disable, or erase it with the drive maker's PSID",
        )
    return security
