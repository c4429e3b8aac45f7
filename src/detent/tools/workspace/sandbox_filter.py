"""The system call filter of a sandbox: no program in it can leave a file that runs with its owner's rights (set-user-id, set-group-id).

Inside the sandbox the workspace mount ignores such bits. Outside, the file would have them, and root would own it if Detent runs as root. So calls that
would set these bits are refused (EPERM): chmod and its relatives, and every call that creates a file with a mode. openat2 and io_uring do not exist
(ENOSYS, as on older systems), because a filter cannot inspect them. memfd_create and memfd_secret do not exist either, because no process limit counts
their memory. System V segments are small (64 KiB), because they need not be mapped. A filter is a classic BPF program (`seccomp(2)`), which bwrap
installs before it starts the program. Processors that are not in `SYSCALLS` have no filter.
"""

from __future__ import annotations

import errno
import platform
import struct

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _PROCESSOR, _ARGUMENTS = 0, 4, 16
SET_ID = 0o6000
CREATES = 0o100 | 0o20000000
"""O_CREAT and O_TMPFILE: without one of them an open has no mode."""
_X32 = 0x40000000
"""From this number on, x86-64 has a second set of call numbers."""

_MISSING = {437: (), 425: (), 447: ()}
_SEGMENT_BYTES = 65_536
_X86_64 = {319: (), 2: (2, 1), 85: (1,), 90: (1,), 91: (1,), 133: (1,), 257: (3, 2), 259: (2,), 268: (2,), 452: (2,), **_MISSING}
_OLD = {117: (), 5: (2, 1), 8: (1,), 14: (1,), 15: (1,), 94: (1,), 452: (2,), **_MISSING}
_I386 = {**_OLD, 356: (), 295: (3, 2), 297: (2,), 306: (2,)}
_AARCH64 = {279: (), 33: (2,), 52: (1,), 53: (2,), 56: (3, 2), 452: (2,), **_MISSING}
_ARM = {**_OLD, 385: (), 322: (3, 2), 324: (2,), 333: (2,)}

Table = dict[int, tuple[int, ...]]
SYSCALLS: dict[str, dict[int, Table]] = {
    "x86_64": {0xC000003E: _X86_64, 0x40000003: _I386},
    "aarch64": {0xC00000B7: _AARCH64, 0x40000028: _ARM},
}
"""By machine and audit architecture: which argument (from 0) of a call is the mode, and which the flags; () for a call that must not exist."""


_SHMGET = {0xC000003E: 29, 0x40000003: 395, 0xC00000B7: 194, 0x40000028: 307}
"""By audit architecture, the number of the call that creates a shared memory segment. `ipc`, its older form, must not exist."""


def program(machine: str = "") -> bytes:
    """Return the filter for a machine (default: this one), or b"" if there is none."""
    made = b"".join(_for(processor, table) for processor, table in SYSCALLS.get(machine or platform.machine(), {}).items())
    return made and _one(_LOAD, _PROCESSOR) + made + _one(_RETURN, _ERRNO | errno.ENOSYS)


def _for(processor: int, table: Table) -> bytes:
    """Return the instructions for the calls of one processor. For other processors they are skipped, with the processor still loaded."""
    body = _one(_LOAD, _NUMBER)
    if table is _X86_64:
        body += _one(_AT_LEAST, _X32, no=1) + _one(_RETURN, _ERRNO | errno.ENOSYS)
    for number, places in table.items():
        looked = _looked(*places) if places else _one(_RETURN, _ERRNO | errno.ENOSYS)
        body += _one(_EQUAL, number, no=len(looked) // 8) + looked
    size = _ARGUMENTS + 8  # the second argument, its lower half first; exceeding SHMMAX is EINVAL too
    large = _one(_LOAD, size + 4) + _one(_EQUAL, 0, no=3) + _one(_LOAD, size) + _one(_AT_LEAST, _SEGMENT_BYTES + 1, yes=1)
    large += _one(_RETURN, _ALLOW) + _one(_RETURN, _ERRNO | errno.EINVAL)
    body += _one(_EQUAL, _SHMGET[processor], no=len(large) // 8) + large + _one(_RETURN, _ALLOW)
    return _one(_EQUAL, processor, no=len(body) // 8) + body


def _looked(mode: int, flags: int | None = None) -> bytes:
    """Return the instructions that refuse a call whose mode has such a bit, if its flags show that it has a mode."""
    asked = b""
    if flags is not None:
        asked = _one(_LOAD, _ARGUMENTS + 8 * flags) + _one(_ANY_BIT, CREATES, no=2)
    asked += _one(_LOAD, _ARGUMENTS + 8 * mode) + _one(_ANY_BIT, SET_ID, yes=1)
    return asked + _one(_RETURN, _ALLOW) + _one(_RETURN, _ERRNO | errno.EPERM)


def _one(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    """Return one instruction. `yes` and `no` are the numbers of instructions to skip."""
    return struct.pack("=HBBI", code, yes, no, value)
