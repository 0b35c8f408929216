"""Building the image from Dockerfile.cu130 with whichever container tool works here, and judging the result."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from abi_checks.errors import SourceError, UsageError, UserError
from stack.definition import LOCKFILES, load_definition
from stack.progress import Progress
from stack.revision import CHECKOUT, revision

DOCKERFILE = "Dockerfile.cu130"
STAND_IN = "localhost/cu130-stack-stand-in"
"""The base image made from this host's distribution, where the real ones cannot be pulled."""

UBUNTU_PYTHON = "3.12"
"""The Python of Ubuntu 24.04, which the CUDA base images are made of."""

PROBE_SECONDS = 30.0
BUILD_SECONDS = 4 * 3600.0
BOOTSTRAP_SECONDS = 1800.0
CHECK_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Engine:
    """A container tool that works on this host: ``docker``, ``podman`` or ``buildah``."""

    name: str

    @property
    def build(self) -> tuple[str, ...]:
        """The command that builds, without its arguments. The format is Docker's: OCI's has no health check."""
        if self.name == "docker":
            return ("docker", "buildx", "build", "--load")
        if self.name == "podman":
            return ("podman", "build", "--layers", "--format", "docker")
        return ("buildah", "--storage-driver", "overlay", "bud", "--layers", "--format", "docker", *self.isolation)

    @property
    def isolation(self) -> tuple[str, ...]:
        """buildah as root needs neither a daemon nor a container runtime when it only changes the root."""
        return ("--isolation", "chroot")

    def check(self, image: str, command: Sequence[str]) -> int:
        """Run a command in a container of the image, its output shown; returns its exit code."""
        if self.name != "buildah":
            return run([self.name, "run", "--rm", image, *command], CHECK_SECONDS)
        buildah = ("buildah", "--storage-driver", "overlay")
        container = output([*buildah, "from", "--pull-never", image], CHECK_SECONDS)
        try:
            return run([*buildah, "run", *self.isolation, container, "--", *command], CHECK_SECONDS)
        finally:
            run([*buildah, "rm", container], CHECK_SECONDS, quiet=True)

    def has(self, image: str) -> bool:
        """Whether the image is on this host."""
        command = {
            "docker": ["docker", "image", "inspect", image],
            "podman": ["podman", "image", "exists", image],
            "buildah": ["buildah", "--storage-driver", "overlay", "inspect", "--type", "image", image],
        }
        return run(command[self.name], PROBE_SECONDS, quiet=True) == 0

    def load_root(self, root: Path, image: str) -> None:
        """Make an image of one layer from a root file system.

        :raises SourceError: the tool's message was shown
        """
        with tempfile.TemporaryDirectory(prefix="cu130-stack-image-", dir=root.parent) as name:
            folder = Path(name)
            (folder / "Dockerfile").write_text('FROM scratch\nADD root.tar /\nCMD ["/bin/sh"]\n')
            if run(
                ["tar", "--create", "--file", str(folder / "root.tar"), "--directory", str(root), "."], BUILD_SECONDS
            ):
                raise SourceError(f"{root}: could not be packed; tar's message is above")
            if run([*self.build, "--tag", image, str(folder)], BUILD_SECONDS, quiet=True):
                raise SourceError(f"{image}: could not be made with {self.name}; run the command again to see why")


PROBES = (
    ("docker", ("docker", "buildx", "ls")),
    ("docker", ("docker", "version")),
    ("podman", ("podman", "info")),
    ("buildah", ("buildah", "info")),
)


def find_engine() -> Engine:
    """The first of docker, podman and buildah that answers; a client without its daemon does not count.

    :raises SourceError: none does, with what each of them said
    """
    said = []
    for name in ("docker", "podman", "buildah"):
        probes = [command for owner, command in PROBES if owner == name]
        if not shutil.which(name):
            said.append(f"  {name}: is not installed")
        elif all(run(command, PROBE_SECONDS, quiet=True) == 0 for command in probes):
            return Engine(name)
        else:
            said.append(f"  {name}: is installed and does not work here (`{' '.join(probes[-1])}` fails)")
    raise SourceError(
        "\n".join(["no container tool works here:", *said])
        + "\nbuildah needs no daemon: install it with the distribution's packages and run this as root"
    )


def build_arguments(stack: str, tag: str, lock: Path | None, stand_in: bool, wheelhouse: Path | None) -> list[str]:
    """The arguments of the build command, the same for every tool; the lock's digest becomes a label."""
    values = {"STACK": stack, "REVISION": revision()}
    if lock:
        values["LOCK_SHA256"] = hashlib.sha256(lock.read_bytes()).hexdigest()
    if stand_in:
        values |= {"BASE": STAND_IN, "RUNTIME": STAND_IN}
    arguments = ["--file", str(CHECKOUT / DOCKERFILE), "--target", "runtime", "--tag", tag]
    arguments += [word for name, value in values.items() for word in ("--build-arg", f"{name}={value}")]
    if wheelhouse:
        arguments += ["--build-context", f"wheels={wheelhouse.resolve()}"]
    return [*arguments, str(CHECKOUT)]


def build_image(
    stack: str, *, tag: str, python: str | None, stand_in: bool, wheelhouse: Path | None, progress: Progress
) -> None:
    """Build the image and run abi-check in it.

    ``python``: X.Y of the base's Python, whose lock the image gets; default: Ubuntu 24.04's, or the stand-in's.

    :raises UserError: the build stopped, at the ABI check for instance, or abi-check in the image finds errors
    """
    if not (CHECKOUT / DOCKERFILE).is_file():
        raise UsageError(f"the image is built from {DOCKERFILE}: run the command from a checkout of the project")
    definition = load_definition(stack)
    if stack.endswith(".toml"):
        raise UsageError(
            f"--stack {stack}: the image is built from the stacks that the project carries; name one of them"
        )
    python = python or (distribution_python() if stand_in else UBUNTU_PYTHON)
    definition.check_python(python)
    engine = find_engine()
    progress.say(f"building with {engine.name}")
    if stand_in and not engine.has(STAND_IN):
        with progress.step("make a stand-in base from this host's distribution"):
            make_stand_in(engine)
    lock = LOCKFILES / definition.lock_path(python).name
    if run([*engine.build, *build_arguments(stack, tag, lock, stand_in, wheelhouse)], BUILD_SECONDS):
        raise UserError(f"{tag}: no image was made; {engine.name}'s messages are above")
    environment = f"/opt/cu130-stack/{stack}/current/env"
    if engine.check(tag, ["/opt/tool/bin/abi-check", environment]):
        raise UserError(f"{tag}: abi-check finds errors in the image; its report is above")


def make_stand_in(engine: Engine) -> None:
    """A minimal root file system of this host's own Debian or Ubuntu release, from its own mirror, as the base image.

    The host's trusted certificates come along: a host behind a proxy that signs anew needs them.

    :raises SourceError: debootstrap is not there or fails
    """
    if not shutil.which("debootstrap"):
        raise SourceError("--stand-in makes a base with debootstrap, which is not installed; install it and run again")
    release = output(["sh", "-c", '. /etc/os-release && echo "$VERSION_CODENAME"'], PROBE_SECONDS)
    indexes = output(["apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)"], PROBE_SECONDS)
    mirror = next((line.split()[1] for line in indexes.splitlines() if line.split()[:1] == [release]), None)
    if mirror is None:
        raise SourceError(f"apt has no mirror of {release}: `apt-get indextargets` does not list one")
    with tempfile.TemporaryDirectory(prefix="cu130-stack-base-", dir="/var/tmp") as name:
        root = Path(name) / "root"
        command = ["debootstrap", "--variant=minbase", "--include=ca-certificates", release, str(root), mirror]
        if run(command, BOOTSTRAP_SECONDS, quiet=True):
            log = root / "debootstrap" / "debootstrap.log"
            tail = log.read_text(errors="replace").splitlines()[-5:] if log.is_file() else ["it left no log"]
            raise SourceError("debootstrap failed (it needs root):\n  " + "\n  ".join(tail))
        certificates = Path("/etc/ssl/certs/ca-certificates.crt")
        if certificates.is_file():
            shutil.copyfile(certificates, root / certificates.relative_to("/"))
        engine.load_root(root, STAND_IN)


def distribution_python() -> str:
    """X.Y of the Python that this host's distribution has, which the stand-in gets."""
    fields = output(["apt-cache", "show", "--no-all-versions", "python3"], PROBE_SECONDS).splitlines()
    version = next((line.partition(": ")[2] for line in fields if line.startswith("Version: ")), "")
    return ".".join(version.split(".")[:2])


def run(command: Sequence[str], seconds: float, *, quiet: bool = False) -> int:
    """Run a program in its own process group, its output shown unless ``quiet``; returns its exit code.

    :raises SourceError: it did not end in time, or could not be started
    """
    stream = subprocess.DEVNULL if quiet else None
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True, cwd=CHECKOUT
        )
    except OSError as error:
        raise SourceError(f"{command[0]} could not be started: {error}") from error
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        raise SourceError(f"{' '.join(command[:3])} did not end within {seconds:g} s") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def output(command: Sequence[str], seconds: float) -> str:
    """What a program prints.

    :raises SourceError: it fails, does not end in time, or could not be started
    """
    try:
        answer = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, start_new_session=True
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceError(f"{command[0]} could not be run: {error}") from error
    if answer.returncode:
        raise SourceError(f"{' '.join(command)} failed: {answer.stderr.strip()}")
    return answer.stdout.strip()
