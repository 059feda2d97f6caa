"""Is there a sandbox on this machine? Tried, not guessed."""

import os
import subprocess
from functools import lru_cache
from pathlib import Path

from slipway.errors import SlipwayError
from slipway.rewards.sandbox import isolation as isolating
from slipway.rewards.sandbox import seccomp
from slipway.rewards.sandbox.isolation import Limits

SECONDS = 20.0
# What the kernel can be told about user namespaces, and what each setting has to be.
_KERNEL_SETTINGS = {
    "/proc/sys/kernel/unprivileged_userns_clone": ("0", "sysctl kernel.unprivileged_userns_clone=1"),
    "/proc/sys/user/max_user_namespaces": ("0", "sysctl user.max_user_namespaces=15000"),
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "an AppArmor profile that allows bwrap user namespaces "
        "(or sysctl kernel.apparmor_restrict_unprivileged_userns=0)",
    ),
}


@lru_cache(maxsize=1)
def unavailable() -> str | None:
    """Return why no sandbox can be made here, and what the administrator must allow; None when one can."""
    if isolating.bubblewrap() is None:
        return "bubblewrap (the command bwrap) is not installed; install the package bubblewrap on every node"
    fault = _try()
    if fault is None:
        return None
    return f"bubblewrap cannot make a sandbox here ({fault}); {_remedy()}"


def require() -> None:
    """Raise `SlipwayError` where there is no sandbox: model-written programs do not run unprotected."""
    if why := unavailable():
        raise SlipwayError(
            f"the code sandbox: {why}. Programs that a model wrote are not run without it, unless the data set says "
            "`reward: {run_code_without_sandbox: true}`: they then have all your rights: files, keys, network"
        )


def _try() -> str | None:
    """Return what bubblewrap says when it fails to run Python; None when it succeeds."""
    with isolating.filter_file(seccomp.program()) as filter_fd:
        command = isolating.command(isolating.FULL, Limits(), filter_fd)
        try:
            ended = subprocess.run(
                [*command, isolating.python(), "-I", "-S", "-c", "import json, resource; print(6 * 7)"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=SECONDS,
                pass_fds=[] if filter_fd is None else [filter_fd],
                env={},
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    if ended.returncode == 0 and ended.stdout.strip() == "42":
        return None
    return (ended.stderr.strip().splitlines() or [f"status {ended.returncode}"])[-1]


def _remedy() -> str:
    """Say what the administrator must allow."""
    settings = [
        wanted
        for path, (bad, wanted) in _KERNEL_SETTINGS.items()
        if Path(path).is_file() and Path(path).read_text(encoding="ascii").strip() == bad
    ]
    if settings:
        return f"the administrator must allow user namespaces: {'; '.join(settings)}"
    if os.geteuid() == 0:
        return (
            "root in a container needs the capabilities SYS_ADMIN, SETUID and SETGID and a system call filter that "
            "allows mount and pivot_root (docker: --privileged, or --cap-add SYS_ADMIN --security-opt "
            "seccomp=unconfined --security-opt apparmor=unconfined)"
        )
    return (
        "the administrator must allow user namespaces; in a container, its system call filter must allow unshare, "
        "clone, mount and pivot_root (docker: --security-opt seccomp=unconfined; apptainer: not started as setuid)"
    )
