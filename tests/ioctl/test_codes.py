# SPDX-License-Identifier: MIT
import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npukit.ioctl import IO, IOC, IOR, IOW, IOWR, decode


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (IOR("T", 0x1B, 0), 0x8000541B),
        (IO("T", 0x1B), 0x541B),
        (IOWR("d", 0, 64), 0xC0406400),  # DRM_IOCTL_VERSION as strace prints it
        (IOW("d", 9, ctypes.c_uint64), 0x40086409),  # DRM_IOCTL_GEM_CLOSE
    ],
)
def test_numbers_equal_those_of_the_headers(number: int, expected: int) -> None:
    assert number == expected


parts = st.tuples(
    st.integers(0, 3), st.integers(0, 255), st.integers(0, 255), st.integers(0, (1 << 14) - 1)
)


@given(parts)
def test_decode_inverts_encode(given_parts: tuple[int, int, int, int]) -> None:
    number = IOC(*given_parts)
    assert 0 <= number < 1 << 32
    assert decode(number) == given_parts
    signed = number - (1 << 32) if number >> 31 else number
    assert decode(signed) == given_parts


@pytest.mark.parametrize(
    "wrong", [(4, 0, 0, 0), (-1, 0, 0, 0), (0, 256, 0, 0), (0, 0, 256, 0), (0, 0, 0, 1 << 14)]
)
def test_a_part_that_does_not_fit_is_refused(wrong: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        IOC(*wrong)


def test_a_number_of_more_than_32_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="not a 32-bit"):
        decode(1 << 32)


def test_text_is_as_strace_writes_it() -> None:
    assert str(decode(0xC0186440)) == "_IOC(_IOC_READ|_IOC_WRITE, 0x64, 0x40, 0x18)"
    assert str(decode(0x5400)) == "_IOC(_IOC_NONE, 0x54, 0, 0)"
