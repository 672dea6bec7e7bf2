"""Reads csrc/core/arguments.def, where the name, type and divisor of every kernel argument stand."""

import dataclasses
import functools
import pathlib
import re

PATH = pathlib.Path(__file__).resolve().parent.parent / "csrc" / "core" / "arguments.def"

_ENTRY = re.compile(r"^FLASHTRI_ARG\(\s*(\w+)\s*,\s*(\w+)\s*,\s*(\d+)\s*\)", re.MULTILINE)
TRITON_DTYPE = {"f16": "fp16", "bf16": "bf16", "f32": "fp32", "boolean": "i1"}


@dataclasses.dataclass(frozen=True)
class Argument:
    name: str
    type: str
    divisor: int

    def triton_type(self, dtype: str, mask: str) -> str:
        """The type in Triton's notation for q of `dtype` and this mask; a tensor_map's depends on the tile as well."""
        if self.type == "element_ptr":
            return "*" + TRITON_DTYPE[dtype]
        if self.type == "mask_ptr":
            # Never read where there is no mask: any type will do.
            return "*" + TRITON_DTYPE.get(mask, "i1")
        return {"f32_ptr": "*fp32", "i32_ptr": "*i32", "i64_ptr": "*i64", "f32": "fp32"}.get(self.type, self.type)

    @property
    def sizes(self) -> list[int]:
        """Bytes of each parameter of the cubin that it becomes."""
        if self.type == "tensor_map":
            # The descriptor by value, then the tensor's four sizes and four strides.
            return [128, *[4] * 4, *[8] * 4]
        return [4 if self.type in ("i32", "f32") else 8]


@functools.cache
def read(path: pathlib.Path = PATH) -> dict[str, Argument]:
    """Every argument by name, in the file's order. Raises ValueError for a file without any."""
    found = {name: Argument(name, kind, int(divisor)) for name, kind, divisor in _ENTRY.findall(path.read_text())}
    if not found:
        raise ValueError(f"{path}: no FLASHTRI_ARG(name, type, divisor) entry found")
    return found


def lookup(name: str, function: str) -> Argument:
    """Raises ValueError, with the remedy, for a kernel parameter that nobody supplies."""
    try:
        return read()[name]
    except KeyError:
        raise ValueError(
            f"kernel {function}: parameter {name!r} is not in {PATH.name}, so no one supplies its value. Rename it "
            f"to one that is, or add FLASHTRI_ARG({name}, type, divisor) there and set it in csrc/core/plan.cpp"
        ) from None
