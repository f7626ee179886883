"""The system calls that confined code may not make, as a filter for `bwrap --seccomp`. Standard library only.

Namespaces decide what a run sees; this decides what of the kernel it can talk to: no keyrings, io_uring, modules,
mounts, further namespaces or families of sockets beyond local and IP ones. What is not listed is allowed: trainers and
inference servers use much of the rest, and an unknown call must not kill a run in its third week.

Classic BPF over `struct seccomp_data` (`nr` at 0, `arch` at 4, arguments from 16), see seccomp(2).
"""

import errno
import platform
import struct

_LOAD, _EQUAL, _GREATER_OR_EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_X32_BIT = 0x40000000
"""Calls of the x32 ABI, which would pass under other numbers."""
_NEW_NAMESPACES = 0x7E020080
"""CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
_SOCKET_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK (how interfaces are listed)."""

# Name: number on x86_64, on aarch64.
_REFUSED = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "delete_module": (176, 106),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setns": (308, 268),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "userfaultfd": (323, 282),
}
# What a tool has no need for: memory that no limit of a process counts, and looking into other processes.
_REFUSED_TO_TOOLS = {
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "msgget": (68, 186),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "semget": (64, 190),
    "shmget": (29, 194),
}
_UNSHARE, _CLONE, _CLONE3 = (272, 97), (56, 220), (435, 435)
_SOCKET, _SOCKETPAIR = (41, 198), (53, 199)
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Machine -> column of the tables above, AUDIT_ARCH constant."""


def filter_program(machine: str = "", *, for_tools: bool = False) -> bytes:
    """The filter, as an array of `struct sock_filter`; for tools a stricter one.

    Raises ValueError for an architecture that has no table.
    """
    machine = machine or platform.machine()
    if machine not in _ARCHITECTURES:
        raise ValueError(f"there is no table of system calls for {machine}, only for {', '.join(_ARCHITECTURES)}")
    column, audit_arch = _ARCHITECTURES[machine]
    program = [
        _statement(_LOAD, _ARCHITECTURE),
        _jump(_EQUAL, audit_arch, skip_if_not=0, skip_if=1),
        _statement(_RETURN, _KILL),
        _statement(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":
        program += [_jump(_GREATER_OR_EQUAL, _X32_BIT, skip_if=0, skip_if_not=1), _refuse(errno.ENOSYS)]
    refused = _REFUSED | _REFUSED_TO_TOOLS if for_tools else _REFUSED
    for numbers in refused.values():
        program += [_jump(_EQUAL, numbers[column], skip_if=0, skip_if_not=1), _refuse(errno.EPERM)]
    # The flags of clone3 lie in memory, which a filter cannot read. Without it libraries use clone.
    program += [_jump(_EQUAL, _CLONE3[column], skip_if=0, skip_if_not=1), _refuse(errno.ENOSYS)]
    for numbers in (_UNSHARE, _CLONE):
        program += [
            _jump(_EQUAL, numbers[column], skip_if=0, skip_if_not=4),
            _statement(_LOAD, _FIRST_ARGUMENT),
            _jump(_ANY_BIT, _NEW_NAMESPACES, skip_if=0, skip_if_not=1),
            _refuse(errno.EPERM),
            _statement(_RETURN, _ALLOW),
        ]
    for numbers in (_SOCKET, _SOCKETPAIR):
        allowed = len(_SOCKET_FAMILIES)
        program += [
            _jump(_EQUAL, numbers[column], skip_if=0, skip_if_not=allowed + 3),
            _statement(_LOAD, _FIRST_ARGUMENT),
            *(
                _jump(_EQUAL, family, skip_if=allowed - place, skip_if_not=0)
                for place, family in enumerate(_SOCKET_FAMILIES)
            ),
            _refuse(errno.EAFNOSUPPORT),
            _statement(_RETURN, _ALLOW),
        ]
    return b"".join([*program, _statement(_RETURN, _ALLOW)])


def _statement(code: int, operand: int) -> bytes:
    return struct.pack("=HBBI", code if code == _RETURN else _LOAD, 0, 0, operand)


def _jump(code: int, operand: int, *, skip_if: int, skip_if_not: int) -> bytes:
    return struct.pack("=HBBI", code, skip_if, skip_if_not, operand)


def _refuse(error: int) -> bytes:
    return _statement(_RETURN, _ERRNO | error)
