# SPDX-License-Identifier: MIT
"""A DSP's process image is loaded only if it is the right one, and nothing is left unchecked."""

import dataclasses
import errno
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from devices.hexagon_session import machine, nothing_left

from npukit.abi import fastrpc as abi
from npukit.devices.fastrpc import FastRpcDevice
from npukit.devices.shell import UNVERIFIED, ShellRejected, ShellVerifier, read_shell
from npukit.ioctl import NpuError
from npukit.sim.cdsp import SHELL

ed25519 = pytest.importorskip(
    "cryptography.hazmat.primitives.asymmetric.ed25519", reason="the extra crypto is not installed"
)
KEY = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw()


@pytest.fixture
def verifier(tmp_path: Path) -> ShellVerifier:
    """One that takes SHELL. (Its reference belongs to whoever runs the tests.)"""
    reference = tmp_path / "shells.sha256"
    digest = hashlib.sha256(SHELL).hexdigest()
    reference.write_text(f"{'0' * 64}  other\n\n{digest}  fastrpc_shell_unsigned_3\n")
    reference.chmod(0o644)
    return ShellVerifier(reference, PUBLIC, KEY.sign(SHELL), os.getuid())


def refusal(verifier: ShellVerifier, image: bytes = SHELL, **changes: Any) -> ShellRejected:
    with pytest.raises(ShellRejected) as caught:
        dataclasses.replace(verifier, **changes).check(image)
    return caught.value


def test_the_right_shell_passes(verifier: ShellVerifier, tmp_path: Path) -> None:
    assert verifier.check(SHELL) == hashlib.sha256(SHELL).hexdigest()
    (tmp_path / "sig").write_bytes(KEY.sign(SHELL))
    assert dataclasses.replace(verifier, signature=tmp_path / "sig").check(SHELL)


def test_other_bytes_are_refused(verifier: ShellVerifier) -> None:
    other = SHELL + b"!"
    error = refusal(verifier, other, signature=KEY.sign(other))
    assert error.errno == errno.EKEYREJECTED
    assert (
        f"the shell of {len(other)} bytes has SHA-256 {hashlib.sha256(other).hexdigest()}"
        in str(error)
    )
    assert "none of the 2 of the reference file" in str(error)


@pytest.mark.parametrize(
    "signature", [b"", bytes(64), bytes(63), KEY.sign(SHELL)[:-1], KEY.sign(b"other")]
)
def test_another_signature_is_refused(verifier: ShellVerifier, signature: bytes) -> None:
    text = str(refusal(verifier, signature=signature))
    assert f"the signature of {len(signature)} bytes is not one of this key" in text
    assert hashlib.sha256(SHELL).hexdigest() in text


def test_another_key_is_refused(verifier: ShellVerifier) -> None:
    other = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes_raw()
    assert refusal(verifier, public_key=other).errno == errno.EKEYREJECTED
    assert refusal(verifier, public_key=b"short").errno == errno.EKEYREJECTED


def test_the_reference_must_be_the_owners_alone(verifier: ShellVerifier) -> None:
    path = Path(verifier.reference)
    error = refusal(verifier, owner=os.getuid() + 1)
    assert (error.errno, error.filename) == (errno.EACCES, str(path))
    assert f"belongs to user {os.getuid()}, not {os.getuid() + 1}" in str(error)
    for mode in (0o664, 0o646, 0o666, 0o620):
        path.chmod(mode)
        assert f"has mode {mode:04o}: group or others may write" in str(refusal(verifier))
    path.chmod(0o600)
    assert verifier.check(SHELL)


def test_what_cannot_be_read_is_a_refusal(verifier: ShellVerifier, tmp_path: Path) -> None:
    assert refusal(verifier, reference=tmp_path / "none").errno == errno.ENOENT
    assert "cannot be read: not an ordinary file" in str(refusal(verifier, reference=tmp_path))
    os.mkfifo(tmp_path / "pipe")
    assert refusal(verifier, reference=tmp_path / "pipe").errno == errno.EINVAL
    assert refusal(verifier, signature=tmp_path / "none").errno == errno.ENOENT
    Path(verifier.reference).write_bytes(b"")
    assert "none of the 0 of" in str(refusal(verifier))
    Path(verifier.reference).write_bytes(b"\xff\xfe no digests\n" + b"a" * 63)
    assert "none of the 0 of" in str(refusal(verifier))


def test_without_cryptography_nothing_is_right(verifier: ShellVerifier, tmp_path: Path) -> None:
    # A package of that name which is none stands before the real one.
    (tmp_path / "cryptography.py").write_text("")
    code = (
        f"from npukit.devices.shell import *; from npukit.sim.cdsp import SHELL\n"
        f"v = ShellVerifier({str(verifier.reference)!r}, {PUBLIC!r}, {KEY.sign(SHELL)!r}, "
        f"{os.getuid()})\n"
        "try: v.check(SHELL)\n"
        "except ShellRejected as error: print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert "the package cryptography is missing" in done.stdout


def test_how_to_verify_must_be_chosen(tmp_path: Path) -> None:
    kernel, dsp = machine()
    image = tmp_path / "shell"
    image.write_bytes(SHELL)
    with nothing_left(dsp), FastRpcDevice.open(kernel=kernel) as device:
        for shell in (SHELL, image, None):
            with pytest.raises(ShellRejected, match=r"verify=ShellVerifier\(\.\.\.\), or"):
                device.start(shell)
            with pytest.raises(ShellRejected):
                device.start(shell, verify=None)
        assert (dsp.dsp.processes, device.running) == ({}, False)
        device.start(image, verify=UNVERIFIED)
        assert repr(UNVERIFIED) == "UNVERIFIED"


def test_nothing_reaches_the_dsp_that_was_refused(verifier: ShellVerifier, tmp_path: Path) -> None:
    kernel, dsp = machine()
    image = tmp_path / "shell"
    with nothing_left(dsp), FastRpcDevice.open(kernel=kernel) as device:
        image.write_bytes(SHELL + b"!")
        with pytest.raises(ShellRejected):
            device.start(image, verify=verifier)
        assert dsp.dsp.processes == {}
        assert not device.running
        image.write_bytes(SHELL)
        device.start(image, verify=verifier)
        assert list(dsp.dsp.processes) == [1]


def test_the_bytes_that_were_verified_are_those_that_are_loaded(
    verifier: ShellVerifier, tmp_path: Path
) -> None:
    kernel, dsp = machine()
    image = tmp_path / "shell"
    image.write_bytes(SHELL)

    class Replacing(ShellVerifier):
        def check(self, data: bytes) -> str:
            digest = super().check(data)
            image.write_bytes(b"something else")
            return digest

    switch = Replacing(verifier.reference, PUBLIC, verifier.signature, os.getuid())
    with nothing_left(dsp), FastRpcDevice.open(kernel=kernel) as device:
        # What stands in the file now is no ELF, and the DSP would refuse it.
        device.start(image, verify=switch)
        assert image.read_bytes() == b"something else"


def test_reading_stops_at_the_limit(tmp_path: Path) -> None:
    image = tmp_path / "shell"
    image.write_bytes(bytes(100))
    assert len(read_shell(image, 10)) == 11
    assert len(read_shell(image, 200)) == 100
    with pytest.raises(NpuError, match="No such file"):
        read_shell(tmp_path / "none", 1)
    assert abi.FASTRPC_MODE_UNSIGNED_MODULE == 8
