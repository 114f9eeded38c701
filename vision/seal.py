"""No sockets and no new programs for a process and all it forks: a seccomp filter, which needs no privileges.

Descriptors that are already open keep working. Knows nothing of decoding. Where the kernel, the processor or a
sandbox round us does not allow it, nothing is changed and the caller is told; the other walls (no protocol that a
demuxer could open, limits, an empty environment) stand without it.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
import subprocess
import sys
from pathlib import Path

_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000 | errno.EACCES

_LOAD_WORD, _JUMP_IF_EQUAL, _JUMP_IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_CALL_NUMBER, _ARCHITECTURE = 0, 4  # where the kernel puts them in what a filter reads

# machine -> (audit number, calls): socket, connect, accept, bind, listen, socketpair, accept4, execve, ptrace,
# bpf, execveat, io_uring_setup (a ring can open sockets), pidfd_getfd.
_CALLS: dict[str, tuple[int, tuple[int, ...]]] = {
    "x86_64": (0xC000003E, (41, 42, 43, 49, 50, 53, 288, 59, 101, 321, 322, 425, 438)),
    "aarch64": (0xC00000B7, (198, 203, 202, 200, 201, 199, 242, 221, 117, 280, 281, 425, 438)),
}
_X32_CALLS = 0x40000000  # another numbering of the same calls on x86_64


def seal_process() -> bool:
    """Refuse those calls with EACCES from now on; False where that cannot be had. Cannot be undone."""
    known = _CALLS.get(platform.machine())
    if known is None:
        return False
    rules = _write_filter(*known)
    code = ctypes.create_string_buffer(rules, len(rules))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rules) // 8, ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    return bool(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0) == 0)


def can_seal() -> bool:
    """Whether it can be had here, tried in a process of its own."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from vision.seal import seal_process as s; sys.exit(not s())"
    )
    root = str(Path(__file__).resolve().parents[1])
    return subprocess.run([sys.executable, "-I", "-c", program, root], check=False).returncode == 0


def _write_filter(architecture: int, calls: tuple[int, ...]) -> bytes:
    """A program for the kernel's packet filter: refuse by number, and all calls of any other architecture."""
    steps: list[tuple[int, int, int, int]] = [
        (_LOAD_WORD, 0, 0, _ARCHITECTURE),
        (_JUMP_IF_EQUAL, 0, len(calls) + 3, architecture),
        (_LOAD_WORD, 0, 0, _CALL_NUMBER),
        (_JUMP_IF_AT_LEAST, len(calls) + 1, 0, _X32_CALLS),
        *((_JUMP_IF_EQUAL, len(calls) - place, 0, call) for place, call in enumerate(calls)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    return b"".join(struct.pack("HBBI", *step) for step in steps)
