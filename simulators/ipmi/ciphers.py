"""Cipher suites 3 and 17: key exchange codes, session keys, integrity and confidentiality.

Sources: IPMI 2.0 rev. 1.1, 13.28 to 13.33 and table 22-20. Both suites use AES-CBC-128; they differ in
the hash. Kuid is the password; the zero bytes that pad it to 20 do not change an HMAC.
"""

import hmac
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

AES_CBC_128: Final = 0x01
_BLOCK: Final = 16
_CONSTANT_LENGTH: Final = 20


class BadCiphertext(ValueError):
    """The payload cannot be decrypted: wrong length or wrong padding."""


@dataclass(frozen=True, slots=True)
class CipherSuite:
    """One row of the cipher suite table, with the hash that its algorithms use."""

    number: int
    authentication: int
    integrity: int
    confidentiality: int
    hash_name: str
    integrity_length: int

    def record(self) -> bytes:
        """The suite as Get Channel Cipher Suites tells it (table 22-18)."""
        return bytes((0xC0, self.number, self.authentication, 0x40 | self.integrity, 0x80 | self.confidentiality))

    def algorithm_record(self) -> bytes:
        """The suite's algorithms alone, for the listing by algorithm."""
        return self.record()[2:]

    def exchange_code(self, key: bytes, message: bytes) -> bytes:
        """A key exchange authentication code of RAKP 2 and 3, in full length."""
        return hmac.digest(key, message, self.hash_name)

    def integrity_check(self, session_key: bytes, message: bytes) -> bytes:
        """The integrity check value of RAKP 4, cut to the length of the integrity algorithm."""
        return hmac.digest(session_key, message, self.hash_name)[: self.integrity_length]


SUITES: Final = {
    3: CipherSuite(3, 0x01, 0x01, AES_CBC_128, "sha1", 12),
    17: CipherSuite(17, 0x03, 0x04, AES_CBC_128, "sha256", 16),
}


def suite_of_algorithms(authentication: int, integrity: int, confidentiality: int) -> CipherSuite | None:
    """The suite that joins these three algorithms, or None."""
    wanted = (authentication, integrity, confidentiality)
    for suite in SUITES.values():
        if (suite.authentication, suite.integrity, suite.confidentiality) == wanted:
            return suite
    return None


class SessionKeys:
    """The keys of one active session and the two transformations they serve."""

    __slots__ = ("_aes", "_integrity_key", "_random", "suite")

    def __init__(
        self, suite: CipherSuite, session_integrity_key: bytes, random: Callable[[int], bytes] = os.urandom
    ) -> None:
        self.suite = suite
        constant_1, constant_2 = b"\x01" * _CONSTANT_LENGTH, b"\x02" * _CONSTANT_LENGTH
        self._integrity_key = hmac.digest(session_integrity_key, constant_1, suite.hash_name)
        self._aes = algorithms.AES(hmac.digest(session_integrity_key, constant_2, suite.hash_name)[:_BLOCK])
        self._random = random

    def __repr__(self) -> str:
        return f"SessionKeys(suite={self.suite.number})"

    def sign(self, signed: bytes) -> bytes:
        """The integrity code of an outgoing packet."""
        return hmac.digest(self._integrity_key, signed, self.suite.hash_name)[: self.suite.integrity_length]

    def verify(self, signed: bytes, code: bytes) -> bool:
        """Whether an incoming packet carries the right integrity code."""
        return hmac.compare_digest(self.sign(signed), code)

    def encrypt(self, payload: bytes) -> bytes:
        """Initialisation vector, then the payload with its padding 1, 2, 3 … and the padding's length."""
        vector = self._random(_BLOCK)
        pad = -(len(payload) + 1) % _BLOCK
        encryptor = Cipher(self._aes, modes.CBC(vector)).encryptor()
        plain = payload + bytes(range(1, pad + 1)) + bytes((pad,))
        return vector + encryptor.update(plain) + encryptor.finalize()

    def decrypt(self, payload: bytes) -> bytes:
        """Undo `encrypt`; raises BadCiphertext for a wrong length or padding."""
        if len(payload) < 2 * _BLOCK or len(payload) % _BLOCK:
            raise BadCiphertext("not a whole number of AES blocks after the vector")
        decryptor = Cipher(self._aes, modes.CBC(payload[:_BLOCK])).decryptor()
        plain = decryptor.update(payload[_BLOCK:]) + decryptor.finalize()
        pad = plain[-1]
        if pad >= _BLOCK or plain[-1 - pad : -1] != bytes(range(1, pad + 1)):
            raise BadCiphertext("the padding is not 1, 2, 3 …")
        return plain[: -1 - pad]
