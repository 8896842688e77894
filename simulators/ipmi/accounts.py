"""Users of a BMC: a fixed table of numbered slots (IPMI 2.0, 6.9)."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from simulators.ipmi.constants import Privilege

MAXIMUM_USERS: Final = 16
NAME_LENGTH: Final = 16
PASSWORD_LENGTH: Final = 20


@dataclass(slots=True)
class User:
    """One user slot. The password stays out of its text form."""

    name: str
    password: bytes = field(repr=False)
    privilege: Privilege = Privilege.ADMINISTRATOR
    enabled: bool = True
    ipmi_messaging: bool = True
    link_authentication: bool = False
    callback_only: bool = False
    sol: bool = True

    def __post_init__(self) -> None:
        if len(self.name.encode()) > NAME_LENGTH:
            raise ValueError(f"IPMI user name {self.name!r} is longer than {NAME_LENGTH} bytes: shorten it")
        if len(self.password) > PASSWORD_LENGTH:
            raise ValueError(f"the password of {self.name!r} is longer than {PASSWORD_LENGTH} bytes: shorten it")


class UserTable:
    """The user slots by number. Slot 1 is the anonymous user's, as the specification has it."""

    def __init__(self, users: Iterable[User] = ()) -> None:
        anonymous = User("", b"", Privilege.NO_ACCESS, enabled=False, ipmi_messaging=False, sol=False)
        self._slots: dict[int, User] = {1: anonymous}
        for user in users:
            number = 1 if not user.name else max(2, max(self._slots) + 1)
            if number > MAXIMUM_USERS:
                raise ValueError(f"a BMC has {MAXIMUM_USERS} user slots: give at most {MAXIMUM_USERS - 1} users")
            self._slots[number] = user

    def slot(self, number: int) -> User | None:
        """The user in a slot, or None where it was never written."""
        return self._slots.get(number)

    def slot_or_new(self, number: int) -> User:
        """The user in a slot, made empty and disabled where there was none."""
        if number not in self._slots:
            self._slots[number] = User("", b"", Privilege.NO_ACCESS, enabled=False, ipmi_messaging=False, sol=False)
        return self._slots[number]

    def named(self, name: bytes) -> list[tuple[int, User]]:
        """The enabled users of this name that may use IPMI, by slot number."""
        return [
            (number, user)
            for number, user in sorted(self._slots.items())
            if user.enabled and user.ipmi_messaging and user.name.encode() == name
        ]

    def enabled_count(self) -> int:
        """How many slots are enabled."""
        return sum(user.enabled for user in self._slots.values())

    def has_named_users(self) -> bool:
        """Whether an enabled user has a name."""
        return any(user.enabled and user.name for user in self._slots.values())

    def has_null_user(self) -> bool:
        """Whether the user without a name is enabled."""
        return any(user.enabled and not user.name for user in self._slots.values())
