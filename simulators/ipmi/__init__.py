"""A fake IPMI 2.0 BMC: RMCP+ with cipher suites 3 and 17, faults on demand, and a journal of what it was asked."""

from simulators.ipmi.accounts import User
from simulators.ipmi.bmc import IpmiBmc
from simulators.ipmi.boot_options import BootOverride
from simulators.ipmi.console import Console
from simulators.ipmi.constants import (
    BootDevice,
    ChassisControl,
    CompletionCode,
    NetFn,
    Privilege,
    RestartCause,
    RmcpStatus,
)
from simulators.ipmi.conversation import Outgoing
from simulators.ipmi.faults import FaultError, FaultRule, Phase, load_faults
from simulators.ipmi.identity import Identity
from simulators.ipmi.journal import Journal, JournalEntry
from simulators.ipmi.machine import PowerTiming
from simulators.ipmi.server import IpmiFleet, IpmiServer, IpmiServerThread
from simulators.ipmi.sessions import SessionLimits

__all__ = [
    "BootDevice",
    "BootOverride",
    "ChassisControl",
    "CompletionCode",
    "Console",
    "FaultError",
    "FaultRule",
    "Identity",
    "IpmiBmc",
    "IpmiFleet",
    "IpmiServer",
    "IpmiServerThread",
    "Journal",
    "JournalEntry",
    "NetFn",
    "Outgoing",
    "Phase",
    "PowerTiming",
    "Privilege",
    "RestartCause",
    "RmcpStatus",
    "SessionLimits",
    "User",
    "load_faults",
]
