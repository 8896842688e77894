"""The smallest RMCP+ client that can hold a BMC core to the specification: bytes in hand, no sockets, no retries.

Written from the specification on its own, so that the simulator's packets are not proved by the simulator's code.
"""

import hashlib
import hmac
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from simulators.ipmi import IpmiBmc, Outgoing, Privilege, User

PEER = ("127.0.0.1", 40_000)
ALGORITHMS = {3: (1, 1, 1, hashlib.sha1, 12), 17: (3, 4, 1, hashlib.sha256, 16)}
RMCP = b"\x06\x00\xff\x07"


class Clock:
    """Monotonic seconds that only move when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


def make_bmc(clock: Callable[[], float] | None = None, **options: object) -> IpmiBmc:
    """A BMC with the users admin (secret), operator and viewer, under a clock of the test's own."""
    users = [
        User("admin", b"secret"),
        User("operator", b"op", Privilege.OPERATOR),
        User("viewer", b"view", Privilege.USER),
    ]
    arguments: dict[str, object] = {"users": users, "clock": clock or Clock(), "wall_clock": lambda: 1_700_000_000.0}
    return IpmiBmc(**{**arguments, **options})  # type: ignore[arg-type]


def message(netfn: int, cmd: int, data: bytes = b"", number: int = 1) -> bytes:
    """An IPMI request to the BMC, checksums included."""
    head = bytes((0x20, netfn << 2))
    tail = bytes((0x81, number << 2, cmd)) + data
    return head + bytes((-sum(head) & 0xFF,)) + tail + bytes((-sum(tail) & 0xFF,))


def sessionless(netfn: int, cmd: int, data: bytes = b"") -> bytes:
    """The request as an IPMI 1.5 packet outside any session."""
    body = message(netfn, cmd, data)
    return RMCP + struct.pack("<BIIB", 0, 0, 0, len(body)) + body


def answer_of(packet: bytes) -> bytes:
    """Completion code and data of a sessionless answer."""
    return packet[14 + 6 : -1]


@dataclass
class RemoteConsole:
    """One session with a BMC core. `open` sets it up; `send` gives completion code and data."""

    bmc: IpmiBmc
    suite: int = 17
    user: str = "admin"
    password: bytes = b"secret"
    level: int = 4
    name_only: bool = True
    k_g: bytes = b""
    remote_id: int = 0xA0A2A3A4
    peer: tuple[str, int] = PEER
    session_id: int = 0
    sequence: int = 0
    number: int = 0
    statuses: list[int] = field(default_factory=list)
    k1: bytes = b""
    k2: bytes = b""

    # Session set-up.

    def open_request(self, tag: int = 1) -> bytes:
        authentication, integrity, confidentiality = ALGORITHMS[self.suite][:3]
        payload = struct.pack("<BBHI", tag, self.level, 0, self.remote_id)
        for kind, algorithm in enumerate((authentication, integrity, confidentiality)):
            payload += struct.pack("<BHBBBH", kind, 0, 8, algorithm, 0, 0)
        return self._set_up(0x10, payload)

    def rakp1(self, tag: int = 2, random: bytes = b"\x5a" * 16) -> bytes:
        self._random = random
        name = self.user.encode()
        payload = struct.pack("<BBHI16sBHB", tag, 0, 0, self.session_id, random, self._role, 0, len(name)) + name
        return self._set_up(0x12, payload)

    def rakp3(self, tag: int = 3, code: bytes | None = None) -> bytes:
        text = self._bmc_random + struct.pack("<I", self.remote_id) + self._role_and_name
        proof = self._hmac(self.password, text) if code is None else code
        return self._set_up(0x14, struct.pack("<BBHI", tag, 0, 0, self.session_id) + proof)

    def _set_up(self, kind: int, payload: bytes) -> bytes:
        return RMCP + struct.pack("<BBIIH", 6, kind, 0, 0, len(payload)) + payload

    @property
    def _role(self) -> int:
        return self.level | (0x10 if self.name_only else 0)

    @property
    def _role_and_name(self) -> bytes:
        return bytes((self._role, len(self.user))) + self.user.encode()

    def _hmac(self, key: bytes, text: bytes) -> bytes:
        return hmac.new(key, text, ALGORITHMS[self.suite][3]).digest()

    def ask(self, datagram: bytes) -> bytes:
        """Send a set-up datagram; gives the payload of the only answer."""
        (outgoing,) = self.bmc.receive(datagram, self.peer)
        return outgoing.packet[16:]

    def open(self) -> "RemoteConsole":
        """The whole set-up; each answer proved. The BMC's statuses are kept; a refusal ends it early."""
        opened = self.ask(self.open_request())
        self.statuses.append(opened[1])
        if opened[1]:
            return self
        assert struct.unpack_from("<I", opened, 4)[0] == self.remote_id
        self.session_id = struct.unpack_from("<I", opened, 8)[0]
        if not self._take_challenge(self.ask(self.rakp1())):
            return self
        self.take_welcome(self.ask(self.rakp3()))
        return self

    def _take_challenge(self, challenge: bytes) -> bool:
        self.statuses.append(challenge[1])
        if challenge[1]:
            return False
        self._bmc_random, self._guid, code = challenge[8:24], challenge[24:40], challenge[40:]
        ids = struct.pack("<II", self.remote_id, self.session_id)
        text = ids + self._random + self._bmc_random + self._guid + self._role_and_name
        self.challenge_is_right = code == self._hmac(self.password, text)
        return True

    def take_welcome(self, welcome: bytes) -> None:
        self.statuses.append(welcome[1])
        if welcome[1]:
            return
        sik = self._hmac(self.k_g or self.password, self._random + self._bmc_random + self._role_and_name)
        proof = self._hmac(sik, self._random + struct.pack("<I", self.session_id) + self._guid)
        assert welcome[8:] == proof[: ALGORITHMS[self.suite][4]]
        self.k1, self.k2 = self._hmac(sik, b"\x01" * 20), self._hmac(sik, b"\x02" * 20)

    # The open session.

    def protect(self, payload: bytes, kind: int = 0, *, sequence: int | None = None) -> bytes:
        """A datagram of the session; the next sequence number unless one is given."""
        if sequence is None:
            self.sequence += 1
            sequence = self.sequence
        pad = -(len(payload) + 1) % 16
        vector = bytes(range(16))
        encryptor = Cipher(algorithms.AES(self.k2[:16]), modes.CBC(vector)).encryptor()
        body = vector + encryptor.update(payload + bytes(range(1, pad + 1)) + bytes((pad,)))
        signed = struct.pack("<BBIIH", 6, 0xC0 | kind, self.session_id, sequence, len(body)) + body
        fill = -(len(signed) + 2) % 4
        signed += b"\xff" * fill + bytes((fill, 7))
        return RMCP + signed + self._hmac(self.k1, signed)[: ALGORITHMS[self.suite][4]]

    def unwrap(self, packet: bytes) -> bytes:
        """The payload of a datagram of the session; its integrity code proved."""
        length = ALGORITHMS[self.suite][4]
        signed, code = packet[4:-length], packet[-length:]
        assert code == self._hmac(self.k1, signed)[:length]
        _, _, session_id, _, size = struct.unpack_from("<BBIIH", signed)
        assert session_id == self.remote_id
        body = signed[12 : 12 + size]
        decryptor = Cipher(algorithms.AES(self.k2[:16]), modes.CBC(body[:16])).decryptor()
        plain = decryptor.update(body[16:])
        return plain[: -1 - plain[-1]]

    def request(self, netfn: int, cmd: int, data: bytes = b"") -> bytes:
        """A command as a datagram."""
        self.number = self.number % 63 + 1
        return self.protect(message(netfn, cmd, data, self.number))

    def outgoing(self, netfn: int, cmd: int, data: bytes = b"") -> list[Outgoing]:
        """Everything that the BMC sends for a command."""
        return self.bmc.receive(self.request(netfn, cmd, data), self.peer)

    def send(self, netfn: int, cmd: int, data: bytes = b"") -> bytes:
        """Send a command: completion code and data of the only answer."""
        (outgoing,) = self.outgoing(netfn, cmd, data)
        return self.result(outgoing.packet)

    def result(self, packet: bytes) -> bytes:
        """Completion code and data of an answer datagram."""
        return self.unwrap(packet)[6:-1]

    def sol(
        self, sequence: int, acknowledged: int = 0, accepted: int = 0, operation: int = 0, data: bytes = b""
    ) -> bytes:
        """A SOL packet as a datagram."""
        return self.protect(bytes((sequence, acknowledged, accepted, operation)) + data, kind=1)
