"""What numba does for `utils.jit`: from a function and the types of its arguments to machine code.

Around every function comes another one that takes its arguments from where `utils.jit` has put them. Nothing in it
counts references or makes arrays, so machine code needs nothing of numba.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from importlib import import_module
from itertools import count
from typing import Any

import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.extending import intrinsic
from numba.np.arrayobj import get_itemsize, make_array, populate_array
from numba.np.numpy_support import from_dtype

from fedfuse.utils.jit import Code, Kinds

log = logging.getLogger(__name__)

# What compiled functions have in common. Inner ones become part of their callers.
COMMON: dict[str, Any] = {
    "nogil": True,
    "_nrt": False,  # arrays are lent: nobody counts who holds them
    "no_cfunc_wrapper": True,
    "no_cpython_wrapper": True,
    "error_model": "numpy",
}
# What machine code may ask for: the C library, which every process has.
LIBRARY = {"memcpy", "memmove", "memset", "exp", "log", "pow", "sqrt"}
# Where in an array object its parts are (NumPy's ndarraytypes.h): behind what every object has.
DATA = object.__basicsize__
SHAPE, STRIDES, FLAGS = DATA + 16, DATA + 24, DATA + 48
CONTIGUOUS = 1  # among the flags
_WORD = ir.IntType(64)


def compiled(module: str, name: str, kinds: Kinds) -> Code:
    """Compile a function for arguments of these types."""
    function = getattr(import_module(module), name)
    names: dict[str, Any] = {"function": function, "whole": _whole, "real": _real}
    arguments = ", ".join(_arguments(iter(kinds), names, count(1), count()))
    names["contiguous"] = _contiguous(names.pop("places", []))
    lines = f"def {name}(words, reals):", "  if contiguous(words):", f"    function({arguments})", "    words[0] = 1"
    exec("\n".join(lines), names)
    around = njit(**COMMON, fastmath=function.targetoptions.get("fastmath", False))(names[name])
    around.compile((types.CPointer(types.int64), types.CPointer(types.float64)))
    (result,) = around.overloads.values()
    _, _, (machine, bitcode) = result.library.serialize_using_object_code()
    symbol = result.fndesc.llvm_func_name
    if strange := _needs(bitcode):
        log.debug("%s.%s cannot be kept: it calls %s", module, name, ", ".join(sorted(strange)))
        return Code(symbol, machine, result.library.get_pointer_to_function(symbol))
    return Code(symbol, machine)


def _needs(bitcode: bytes) -> set[str]:
    """Return the functions that this code calls and that not every process has."""
    declared = {each.name for each in binding.parse_bitcode(bitcode).functions if each.is_declaration}
    return {each for each in declared - LIBRARY if not each.startswith("llvm.")}


def _arguments(
    kinds: Iterator[Any], names: dict[str, Any], words: Iterator[int], reals: Iterator[int]
) -> Iterator[str]:
    """Say for each argument where it is."""
    for kind in kinds:
        if kind is int:
            yield f"whole(words, {next(words)})"
        elif kind is float:
            yield f"real(reals, {next(reals)})"
        elif isinstance(kind, np.dtype):
            reader, place = f"array{len(names)}", next(words)
            names[reader] = _array(types.Array(from_dtype(kind), next(kinds), "C"))
            names.setdefault("places", []).append(place)
            yield f"{reader}(words, {place})"
        else:
            inner = _arguments(kinds, names, words, reals)
            parts = ", ".join(next(inner) for _ in range(next(kinds)))
            names[kind.__name__] = kind
            yield f"({parts},)" if kind is tuple else f"{kind.__name__}({parts})"


def _at(builder: Any, address: Any, offset: int, kind: Any = _WORD) -> Any:
    """Load a number that lies behind an address."""
    return builder.load(builder.inttoptr(builder.add(address, _WORD(offset)), kind.as_pointer()))


def _contiguous(places: list[int]) -> Any:
    """Return a function for compiled code: whether all arrays at these places of the words are contiguous."""

    def emit(_typing: Any, words: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            number = ir.IntType(32)
            flags = number(CONTIGUOUS)
            for place in places:
                address = builder.load(builder.gep(arguments[0], [_WORD(place)]))
                flags = builder.and_(flags, _at(builder, address, FLAGS, number))
            return builder.icmp_unsigned("!=", flags, number(0))

        return types.boolean(words), generate

    return intrinsic(emit)


def _array(kind: Any) -> Any:
    """Return a function for compiled code: the array whose object's address is this word."""

    def emit(_typing: Any, words: Any, place: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            address = builder.load(builder.gep(arguments[0], [arguments[1]]))
            data, shape, strides = (_at(builder, address, offset) for offset in (DATA, SHAPE, STRIDES))
            array = make_array(kind)(context, builder)
            populate_array(
                array,
                builder.inttoptr(data, array.data.type),
                [_at(builder, shape, 8 * axis) for axis in range(kind.ndim)],
                [_at(builder, strides, 8 * axis) for axis in range(kind.ndim)],
                get_itemsize(context, kind),
                None,  # nobody counts who holds it
            )
            return array._getvalue()

        return kind(words, types.intp), generate

    return intrinsic(emit)


def _emit_number(_typing: Any, numbers: Any, place: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.gep(arguments[0], [arguments[1]]))

    return numbers.dtype(numbers, types.intp), generate


_whole = _real = intrinsic(_emit_number)
