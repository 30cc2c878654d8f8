"""Vectors of a few numbers, for compiled loops that the compiler would not vectorise by itself.

A loop that writes to several arrays must first make sure that they do not lie across each other; with more than a
few arrays LLVM gives up. Here a kernel says itself that it works on ``width(array)`` numbers at once, and that its
rows are apart:

    for e in range(0, row.size - width(row) + 1, width(row)):
        store(row, e, load(row, e) * splat(factor) + load(other, e))

Lanes can be added, subtracted, multiplied and divided; products are fused with sums where the processor can do that.
Nothing else is changed, so that all processes compute the same bits.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from functools import partial
from math import e, factorial, log, log2
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.core.datamodel import models
from numba.core.errors import TypingError
from numba.core.typing.templates import AbstractTemplate, infer_global
from numba.extending import intrinsic, lower_builtin, register_model

from fedfuse.utils.alignment import LINE_BYTES, lane_bytes

BYTES = lane_bytes()
_intrinsic: Any = intrinsic  # untyped: what it returns is called with other arguments
_FLAGS = ("contract", "nsz")
_INT32 = ir.IntType(32)


class Lanes(types.Type):
    """As many numbers as there are in a register, or in so many bytes."""

    def __init__(self, dtype: Any, size: int = BYTES) -> None:
        self.dtype, self.width = dtype, size * 8 // dtype.bitwidth
        super().__init__(name=f"Lanes({dtype}, {self.width})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Any) -> None:
        scalar = ir.FloatType() if lanes.dtype == types.float32 else ir.DoubleType()
        super().__init__(manager, lanes, ir.VectorType(scalar, lanes.width))


def _code(signature: Any, emit: Callable[..., Any]) -> Any:
    """Return what an intrinsic returns: its signature, and a function that emits its code."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        value = emit(context, builder, *arguments)
        return context.get_dummy_value() if value is None else value

    return signature, generate


def _address(context: Any, builder: Any, array: Any, value: Any, index: Any, kind: Any) -> Any:
    """Return the address of ``array[index]`` as that of something of another kind."""
    data = context.make_array(array)(context, builder, value).data
    return builder.bitcast(builder.gep(data, [index]), kind.as_pointer())


def _lanes_of(array: Any, size: int = BYTES) -> Lanes:
    if array.layout != "C":
        raise TypingError(f"kernels take contiguous arrays alone, got {array}")
    return Lanes(array.dtype, size)


def _places(numbers: Iterable[int]) -> Any:
    places = list(numbers)
    return ir.Constant(ir.VectorType(_INT32, len(places)), places)


def _count(size: int) -> Any:
    """Return an intrinsic: how many numbers of an array are so many bytes; a constant, which array.itemsize is not."""

    def count(_typing: Any, array: Any) -> Any:
        number = size * 8 // array.dtype.bitwidth
        return _code(types.intp(array), lambda context, builder, _: context.get_constant(types.intp, number))

    return _intrinsic(count)


# Bytes of lanes for rows of few numbers, on every processor.
SHORT_BYTES = 32
# width(array), short(array): how many of its numbers are lanes, short ones; line(array): how many are a cache line.
width, short, line = _count(BYTES), _count(SHORT_BYTES), _count(LINE_BYTES)


def _loads(size: int) -> Any:
    """Return an intrinsic: lanes of so many bytes."""

    def load(_typing: Any, array: Any, _index: Any) -> Any:
        lanes = _lanes_of(array, size)

        def emit(context: Any, builder: Any, value: Any, index: Any) -> Any:
            address = _address(context, builder, array, value, index, context.get_value_type(lanes))
            return builder.load(address, align=array.dtype.bitwidth // 8)

        return _code(lanes(array, types.intp), emit)

    return _intrinsic(load)


def _splats(size: int) -> Any:
    """Return an intrinsic: lanes of so many bytes that are all one number."""

    def splat(_typing: Any, number: Any) -> Any:
        lanes = Lanes(number, size)

        def emit(context: Any, builder: Any, value: Any) -> Any:
            nothing = ir.Constant(context.get_value_type(lanes), ir.Undefined)
            first = builder.insert_element(nothing, value, _INT32(0))
            return builder.shuffle_vector(first, nothing, _places([0] * lanes.width))

        return _code(lanes(number), emit)

    return _intrinsic(splat)


# load(array, index): array[index : index + width], without a check of the index; splat(number): lanes that are all this
# number. The short ones are for rows of few numbers.
load, splat = _loads(BYTES), _splats(BYTES)
load_short, splat_short = _loads(SHORT_BYTES), _splats(SHORT_BYTES)


@_intrinsic
def store(_typing: Any, array: Any, _index: Any, lanes: Any) -> Any:
    """``array[index : index + lanes] = lanes``, without a check of the index."""
    _lanes_of(array)

    def emit(context: Any, builder: Any, value: Any, index: Any, vector: Any) -> None:
        address = _address(context, builder, array, value, index, vector.type)
        builder.store(vector, address, align=array.dtype.bitwidth // 8)

    return _code(types.none(array, types.intp, lanes), emit)


@_intrinsic
def prefetch(_typing: Any, array: Any, _index: Any) -> Any:
    """Ask for the cache line of ``array.flat[index]`` ahead of its use; any index is allowed."""

    def emit(context: Any, builder: Any, value: Any, index: Any) -> None:
        pointer = _address(context, builder, array, value, index, ir.IntType(8))
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, _INT32, _INT32, _INT32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        # to read (to write is slower), into the first-level cache, data
        builder.call(function, [pointer, _INT32(0), _INT32(3), _INT32(1)])

    return _code(types.none(array, types.intp), emit)


@_intrinsic
def choose(_typing: Any, a: Any, b: Any, x: Any, y: Any) -> Any:
    """``x`` where ``a > b``, else ``y``."""
    return _code(a(a, b, x, y), lambda _, builder, a, b, x, y: builder.select(builder.fcmp_ordered(">", a, b), x, y))


@_intrinsic
def total(_typing: Any, lanes: Any) -> Any:
    """The sum of lanes, float64."""

    def emit(_context: Any, builder: Any, vector: Any) -> Any:
        half = lanes.width
        while half > 1:  # the second half onto the first
            half //= 2
            lower, upper = _places(range(half)), _places(range(half, 2 * half))
            vector = builder.fadd(*(builder.shuffle_vector(vector, vector, part) for part in (lower, upper)))
            if half == 4 and lanes.dtype == types.float32:
                vector = builder.fpext(vector, ir.VectorType(ir.DoubleType(), half))
        return builder.extract_element(vector, _INT32(0))

    return _code(types.float64(lanes), emit)


@_intrinsic
def totals(_typing: Any, lanes: Any, _b: Any, _c: Any, _d: Any) -> Any:
    """Lanes of which those at k, k + 4, … add up to the sum of the k-th argument."""
    w, unit = lanes.width, 128 // lanes.dtype.bitwidth  # places within 16 bytes cost least to move between

    def emit(_context: Any, builder: Any, *arguments: Any) -> Any:
        def fold(a: Any, b: Any, places: list[int], step: int) -> Any:
            parts = (builder.shuffle_vector(a, b, _places(p + step * k for p in places)) for k in (0, 1))
            return builder.fadd(*parts, flags=_FLAGS)

        # neighbours within each unit: of one argument, then of the next
        neighbours = [u + side + p for u in range(0, w, unit) for side in (0, w) for p in range(0, unit, 2)]
        a, b = (fold(arguments[k], arguments[k + 1], neighbours, 1) for k in (0, 2))
        if unit == 4:
            return fold(a, b, neighbours, 1)
        # two of four are one unit now: add its second half to the first
        halves = [u + side + p for u in range(0, w // 2, unit) for side in (0, w) for p in range(unit)]
        return fold(a, b, halves, w // 2)

    return _code(lanes(lanes, lanes, lanes, lanes), emit)


# Of each format: terms of the series, where exp(x) is about the smallest normal number, log 2 in two parts (k times the
# first is exact), bits in all and of the mantissa, bias of the exponent.
_FORMATS = {
    types.float32: (8, -87.0, 355 / 512, log(2) - 355 / 512, 32, 23, 127),
    types.float64: (14, -708.0, 6.93147180369123816490e-01, 1.90821492927058770002e-10, 64, 52, 1023),
}


@_intrinsic
def exp(_typing: Any, lanes: Any) -> Any:
    """The exponential of lanes <= 0, but not less than the smallest normal number; math.exp is not vectorised.

    exp(x) = 2^k exp(r), k = round(x / log 2), |r| <= log(2) / 2. log 2 is cut in two to make r exact; exp(r) is its
    Taylor series, as long as terms are felt; 2^k is made of bits.
    """
    terms, smallest, high, low, bits, mantissa, bias = _FORMATS[lanes.dtype]

    def emit(context: Any, builder: Any, x: Any) -> Any:
        kind, integers = context.get_value_type(lanes), ir.VectorType(ir.IntType(bits), lanes.width)

        def constant(number: float, of: Any = kind) -> Any:
            return ir.Constant(of, [number] * lanes.width)

        add, subtract, times = (partial(f, flags=("contract",)) for f in (builder.fadd, builder.fsub, builder.fmul))
        lowest = constant(smallest)
        x = builder.select(builder.fcmp_ordered("<", x, lowest), lowest, x)
        # x is not positive, so that cutting off rounds; 32 bits, for which processors have an instruction
        rounded = subtract(times(x, constant(log2(e))), constant(0.5))
        number = builder.fptosi(rounded, ir.VectorType(_INT32, lanes.width))
        k = builder.sitofp(number, kind)
        r = subtract(subtract(x, times(k, constant(high))), times(k, constant(low)))
        series = constant(1 / factorial(terms - 1))
        for n in reversed(range(terms - 1)):
            series = add(constant(1 / factorial(n)), times(r, series))
        exponent = builder.sext(number, integers) if bits > 32 else number
        power = builder.shl(builder.add(exponent, constant(bias, integers)), constant(mantissa, integers))
        return times(series, builder.bitcast(power, kind))

    return _code(lanes(lanes), emit)


class _Alike(AbstractTemplate):
    """Lanes and lanes of the same kind give such lanes."""

    def generic(self, arguments: Any, keywords: Any) -> Any:
        a = arguments[0]
        return a(a, a) if isinstance(a, Lanes) and arguments == (a, a) else None


def _arithmetic(sign: Any, name: str) -> None:
    """Teach the compiler one operator. Not by `overload`, which would be asked about every sum of integers, slowly."""

    def compute(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return getattr(builder, name)(*arguments, flags=_FLAGS)

    infer_global(sign)(type(f"_{name}", (_Alike,), {"key": sign}))
    lower_builtin(sign, Lanes, Lanes)(compute)


_arithmetic(operator.add, "fadd")
_arithmetic(operator.sub, "fsub")
_arithmetic(operator.mul, "fmul")
_arithmetic(operator.truediv, "fdiv")
