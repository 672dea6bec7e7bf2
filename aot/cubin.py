"""Facts read from a cubin itself: registers, stack and the list of parameters the driver will expect.

A cubin is a 64-bit ELF file; the facts are attributes in its .nv.info sections, each (format u8, attribute u8, u16
value or size), followed by a payload where the format is 4.
"""

import dataclasses
import struct

_REGCOUNT, _FRAME_SIZE, _KPARAM_INFO = 0x2F, 0x11, 0x17


@dataclasses.dataclass(frozen=True)
class CubinFacts:
    registers: int
    stack_bytes: int
    param_sizes: list[int]  # by ordinal


def _sections(image: bytes):
    (offset,) = struct.unpack_from("<Q", image, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", image, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, offset + i * size) for i in range(count)]
    names = headers[names_index][4]
    for header in headers:
        name = image[names + header[0] : image.index(b"\0", names + header[0])].decode()
        yield name, image[header[4] : header[4] + header[5]]


def _attributes(section: bytes):
    position = 0
    while position + 4 <= len(section):
        kind, attribute, value = struct.unpack_from("<BBH", section, position)
        position += 4
        payload = section[position : position + value] if kind == 4 else b""
        position += len(payload)
        yield attribute, payload


def read(image: bytes, symbol: str) -> CubinFacts:
    """Facts of kernel `symbol`. Raises ValueError where the image is no cubin or has no such kernel."""
    if image[:4] != b"\x7fELF":
        raise ValueError("not a cubin: no ELF header")
    sections = dict(_sections(image))
    if f".nv.info.{symbol}" not in sections:
        raise ValueError(f"the cubin has no kernel {symbol!r}")
    params = {}
    for attribute, payload in _attributes(sections[f".nv.info.{symbol}"]):
        if attribute == _KPARAM_INFO:
            _, ordinal, _, flags = struct.unpack("<IHHI", payload)
            params[ordinal] = flags >> 18
    registers = stack = 0
    # The cubin holds one kernel, so the largest value is the kernel's own.
    for attribute, payload in _attributes(sections[".nv.info"]):
        if attribute == _REGCOUNT:
            registers = max(registers, struct.unpack("<II", payload)[1])
        elif attribute == _FRAME_SIZE:
            stack = max(stack, struct.unpack("<II", payload)[1])
    return CubinFacts(registers, stack, [params[i] for i in range(len(params))])
