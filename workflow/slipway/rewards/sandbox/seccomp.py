"""A system call filter for model-written programs, as the BPF program that bubblewrap takes.

It denies what limits on processes and address space do not reach: memory that belongs to no process (memfd, SysV and
POSIX queues and segments), other processes' memory, sockets that no network namespace holds back (a virtual
machine's host listens on AF_VSOCK), and the parts of the kernel that break out of sandboxes were
found in. An own list, because it is short and libseccomp is not everywhere; on another architecture there is none.
"""

import errno
import platform
import socket
import struct

# linux/audit.h, and the system calls' numbers (linux/unistd.h); those from 424 on are the same everywhere
_COMMON = {
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "memfd_secret": 447,
}
_ARCHITECTURES: dict[str, tuple[int, int, tuple[int, int], dict[str, int]]] = {
    # name: (audit architecture, clone, socket and socketpair, denied calls)
    "x86_64": (
        0xC000003E,
        56,
        (41, 53),
        {
            "shmget": 29,
            "semget": 64,
            "msgget": 68,
            "ptrace": 101,
            "pivot_root": 155,
            "chroot": 161,
            "mount": 165,
            "umount2": 166,
            "mq_open": 240,
            "add_key": 248,
            "request_key": 249,
            "keyctl": 250,
            "unshare": 272,
            "perf_event_open": 298,
            "open_by_handle_at": 304,
            "setns": 308,
            "process_vm_readv": 310,
            "process_vm_writev": 311,
            "memfd_create": 319,
            "bpf": 321,
            "userfaultfd": 323,
        },
    ),
    "aarch64": (
        0xC00000B7,
        220,
        (198, 199),
        {
            "umount2": 39,
            "mount": 40,
            "pivot_root": 41,
            "chroot": 51,
            "unshare": 97,
            "ptrace": 117,
            "mq_open": 180,
            "msgget": 186,
            "semget": 190,
            "shmget": 194,
            "add_key": 217,
            "request_key": 218,
            "keyctl": 219,
            "perf_event_open": 241,
            "open_by_handle_at": 265,
            "setns": 268,
            "process_vm_readv": 270,
            "process_vm_writev": 271,
            "memfd_create": 279,
            "bpf": 280,
            "userfaultfd": 282,
        },
    ),
}
_CLONE3 = 435
# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET: namespaces of the program's own
_NEW_NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
_X32 = 0x40000000

# linux/bpf_common.h, linux/seccomp.h
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000
# offsets in struct seccomp_data
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16


def program(machine: str = platform.machine()) -> bytes | None:
    """Return the filter for `machine`; None where its system calls are not known here."""
    if machine not in _ARCHITECTURES:
        return None
    architecture, clone, sockets, denied = _ARCHITECTURES[machine]
    code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _FAIL | errno.EPERM),
        # its flags are out of a filter's sight; libraries fall back to clone
        (_EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, _FAIL | errno.ENOSYS),
    ]
    for number in sorted([*_COMMON.values(), *denied.values()]):
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _FAIL | errno.EPERM)]
    for number in sockets:
        code += [
            (_EQUAL, 0, 6, number),
            (_LOAD, 0, 0, _FIRST_ARGUMENT),
            (_EQUAL, 2, 0, socket.AF_UNIX),
            (_EQUAL, 1, 0, socket.AF_INET),
            (_EQUAL, 0, 1, socket.AF_INET6),
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, _FAIL | errno.EAFNOSUPPORT),
        ]
    code += [
        (_EQUAL, 0, 3, clone),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        (_RETURN, 0, 0, _FAIL | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
