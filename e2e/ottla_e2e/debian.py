"""Root folders from Debian's packages, without a chroot and without running any of their scripts. [A]

apt itself works out what belongs together, against the status of a system where nothing is installed. Only what is
needed to run a program is unpacked, not what would install or configure it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ottla_e2e.say import Fault

#: Depended on by scripts that are not run here, or by nothing that is.
_FOR_INSTALLING = (
    "adduser", "ca-certificates", "debconf", "debianutils", "dpkg", "init-system-helpers", "libfile-find-rule-perl",
    "libnumber-compare-perl", "libpam-modules", "libperl", "libsemanage", "libtext-glob-perl", "openssl", "passwd",
    "perl", "tar", "usrmerge", "util-linux",
)  # fmt: skip
_USERS = "root:x:0:0::/root:/bin/sh\nottla:x:10001:10001::/tmp:/bin/sh\n"
_UNREAD = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "usr/share/lintian")
#: Debian's libraries live below /usr; packages may still say /bin or /lib.
_MERGED = ("bin", "sbin", "lib", "lib64")


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    #: As apt names it, with its version.
    file: str


def closure(names: Sequence[str], scratch: Path) -> list[Package]:
    """These packages and all that they need."""
    listed = _apt(["install", "--print-uris", *names], scratch)
    if listed is None:
        if os.geteuid() == 0:
            subprocess.run(["apt-get", "-qq", "update"], check=False, timeout=300)
        listed = _apt(["install", "--print-uris", *names], scratch)
    if listed is None:
        raise Fault(
            f"apt does not know {' '.join(names)}: images are made from Debian's packages (apt-get update?)"
        )
    files = [line.split()[1] for line in listed.splitlines() if line.startswith("'")]
    packages = [Package(file.partition("_")[0], file) for file in files]
    return [each for each in packages if not each.name.startswith(_FOR_INSTALLING)]


def unpack(names: Sequence[str], packages: Sequence[Package], root: Path, scratch: Path) -> None:
    """Put the files of `packages`, which are of the closure of `names`, below `root`."""
    if _apt(["install", "--download-only", *names], scratch) is None:
        raise Fault(f"apt could not download {' '.join(names)}")
    for name in _MERGED:
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        if not (root / name).is_symlink():
            (root / name).symlink_to(f"usr/{name}")
    for package in packages:
        archive = scratch / "archives" / package.file
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", archive], stdout=subprocess.PIPE) as content:
            extract = ["tar", "--extract", "--keep-directory-symlink", "--directory", str(root)]
            subprocess.run(extract, stdin=content.stdout, check=True, timeout=300)
        if content.returncode:
            raise Fault(f"{package.file} cannot be unpacked")
    for name in _UNREAD:
        shutil.rmtree(root / name, ignore_errors=True)
    _furnish(root)


def _furnish(root: Path) -> None:
    """What installing would have made: users, the order of looking up names, a place for files, everyday commands."""
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/passwd").write_text(_USERS)
    (root / "etc/group").write_text("root:x:0:\nottla:x:10001:\n")
    (root / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
    (root / "tmp").mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)
    busybox = root / "usr/bin/busybox"
    if busybox.exists():
        for name in subprocess.check_output([busybox, "--list"], text=True, timeout=30).split():
            command = root / "usr/bin" / name
            if not command.exists() and not command.is_symlink():
                command.symlink_to("busybox")


def _apt(arguments: Sequence[str], scratch: Path) -> str | None:
    """What apt-get prints; None if it fails."""
    if shutil.which("apt-get") is None:
        raise Fault("images are made from Debian's packages, and there is no apt-get on this machine")
    (scratch / "archives/partial").mkdir(parents=True, exist_ok=True)
    (scratch / "status").touch()
    options = {
        "Dir::State::status": scratch / "status",
        "Dir::State::extended_states": scratch / "extended_states",
        "Dir::Cache::archives": scratch / "archives",
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "true",
    }
    flags = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    done = subprocess.run(
        ["apt-get", "-qq", "-y", *flags, *arguments], capture_output=True, text=True, timeout=600, check=False
    )
    return done.stdout if done.returncode == 0 else None
