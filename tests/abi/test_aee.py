# SPDX-License-Identifier: MIT
"""Result codes of a DSP, against numbers seen in public reports and in AEEStdErr.h."""

import pytest

from npukit.abi import aee


@pytest.mark.parametrize(
    ("code", "name", "layer"),
    [
        (0x80000406, "AEE_EUNABLETOLOAD", aee.SHELL),
        (0x80000414, "AEE_EUNSUPPORTED", aee.AEE),
        (0x8000041D, "AEE_EMEMPTR", aee.AEE),
        (0x8000040D, "AEE_EBADSTATE", aee.AEE),
        (0x8000042C, "AEE_EINVHANDLE", aee.AEE),
        (0x80000438, "AEE_EINVALIDSIGNATURE", aee.SIGNATURE),
        (0x80000445, "AEE_ENOSUCHFILE", aee.FILE),
        (0x80000452, "AEE_EBADELF", aee.SHELL),
        (0x80000462, "AEE_EFLEN", aee.FILE),
        (0x80000472, "AEE_ECONNREFUSED", aee.RPC),
        (0x80000481, "AEE_EUNSIGNEDMOD", aee.SIGNATURE),
        (0x8000048A, "AEE_ENOSESSION", aee.RPC),
        (0x8000054F, "AEE_EQURTBADASID", aee.SHELL),
        (0x80000559, "AEE_EQURTMIGRATESECURE", aee.SHELL),
        (0x80000560, "AEE_EQURTQDIOPEN", aee.SHELL),
        (0x80000594, "AEE_ESTUBSKELVERMISMATCH", aee.RPC),
        (0x80000600, "AEE_ERPC", aee.RPC),
        (0x27, "AEE_ENOSUCH", aee.AEE),
        (0x2E, "AEE_EINTERRUPTED", aee.AEE),
        (104, "AEE_ECONNRESET", aee.RPC),
        (0x72, "AEE_ECONNREFUSED", aee.RPC),
        (0x14, "AEE_EUNSUPPORTED", aee.AEE),
        (-1, "AEE_EUNKNOWN", aee.AEE),
        (0x12345678, "0x12345678", "module"),
        (0x800005FF, "0x800005ff", aee.RPC),
    ],
)
def test_codes_have_name_and_layer(code: int, name: str, layer: str) -> None:
    found = aee.decode(code)
    assert (found.name, found.layer) == (name, layer)
    assert aee.decode(code - (1 << 32) if code > 0 else code + (1 << 32)) == found


def test_a_name_has_its_code() -> None:
    assert aee.code_of("EBADPARM") == aee.code_of("AEE_EBADPARM") == 0x8000040E
    with pytest.raises(KeyError):
        aee.code_of("EVERYTHING")
