# SPDX-License-Identifier: MIT
"""npukit fastrpc verify-shell"""

import hashlib
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from npukit.cli.fastrpc import fastrpc
from npukit.devices.shell import ShellRejected
from npukit.sim.cdsp import SHELL

ed25519 = pytest.importorskip(
    "cryptography.hazmat.primitives.asymmetric.ed25519", reason="the extra crypto is not installed"
)
KEY = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "shell").write_bytes(SHELL)
    (tmp_path / "reference").write_text(hashlib.sha256(SHELL).hexdigest() + "  shell\n")
    (tmp_path / "reference").chmod(0o644)
    (tmp_path / "signature").write_bytes(KEY.sign(SHELL))
    (tmp_path / "key").write_bytes(PUBLIC)
    (tmp_path / "key.hex").write_text(PUBLIC.hex() + "\n")
    return tmp_path


def verify(files: Path, key: str, shell: str = "shell") -> Result:
    arguments = ["verify-shell", "--reference", str(files / "reference"), "--key", key]
    arguments += ["--signature", str(files / "signature"), "--owner", str(os.getuid())]
    return CliRunner().invoke(fastrpc, [*arguments, str(files / shell)])


def test_the_right_shell(files: Path) -> None:
    for key in (PUBLIC.hex(), str(files / "key"), str(files / "key.hex")):
        done = verify(files, key)
        assert done.exit_code == 0, done.output
        assert done.output == (
            f"{files / 'shell'}: {len(SHELL)} bytes, SHA-256 "
            f"{hashlib.sha256(SHELL).hexdigest()}: right\n"
        )


def test_a_wrong_shell_fails(files: Path) -> None:
    (files / "shell").write_bytes(SHELL + b"!")
    done = verify(files, PUBLIC.hex())
    assert done.exit_code == 1
    assert isinstance(done.exception, ShellRejected)
    (files / "shell").write_bytes(bytes((2 << 20) + 1))
    done = verify(files, PUBLIC.hex())
    assert done.exit_code == 1
    assert "more than the driver's 2097152 bytes" in done.output


@pytest.mark.parametrize("key", ["", "zz", "00" * 31])
def test_a_key_that_is_none(files: Path, key: str) -> None:
    done = verify(files, key)
    assert done.exit_code == 2
    assert "32 bytes" in done.output


def test_a_key_that_is_no_file_either_is_named(files: Path) -> None:
    assert "'k' is neither a file nor 64 hex digits" in verify(files, "k").output
