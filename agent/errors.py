"""What can go wrong on the agent's own host, typed by what its operator can do.

Failures of machines are OperationErrors.

RackwrightError
└── AgentError                the message says what to do next
    ├── ConfigError           the configuration file has faults; `issues` lists all of them
    ├── JournalError          a write to the journal failed; what it was for has not been done
    │   └── JournalDamaged    the file cannot be trusted: the agent does not start with it
    ├── IdentityError         no usable certificate: join (again)
    ├── JoinFailed            the control plane refused, or is not who the token says
    └── VaultError            the vault or its key cannot be used
"""

from collections.abc import Iterable

from protocol.errors import Issue, RackwrightError

__all__ = [
    "AgentError",
    "ConfigError",
    "IdentityError",
    "JoinFailed",
    "JournalDamaged",
    "JournalError",
    "VaultError",
]


class AgentError(RackwrightError):
    """Something on the agent's host must be mended; the text says what."""

    code = "AGENT_ERROR"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ConfigError(AgentError):
    code = "CONFIG_INVALID"

    def __init__(self, message: str, issues: Iterable[Issue] = ()) -> None:
        super().__init__(message)
        self.issues = list(issues)


class JournalError(AgentError):
    code = "JOURNAL_FAILED"


class JournalDamaged(JournalError):
    code = "JOURNAL_DAMAGED"


class IdentityError(AgentError):
    code = "NOT_JOINED"


class JoinFailed(AgentError):
    """`refusal`: the control plane's own code (`JoinRefused.code`); empty where it did not answer, or gave none."""

    code = "JOIN_REFUSED"

    def __init__(self, message: str, refusal: str = "") -> None:
        super().__init__(message)
        self.refusal = refusal


class VaultError(AgentError):
    code = "VAULT_UNUSABLE"
