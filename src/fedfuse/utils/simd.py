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
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.core.datamodel import models
from numba.core.typing.templates import AbstractTemplate, infer_global
from numba.extending import intrinsic, lower_builtin, register_model

from fedfuse.utils.jit import lane_bytes

BYTES = lane_bytes()
_FLAGS = ("contract", "nsz")


class Lanes(types.Type):
    """As many numbers as there are in a register."""

    def __init__(self, dtype: Any) -> None:
        self.dtype, self.width = dtype, BYTES * 8 // dtype.bitwidth
        super().__init__(name=f"Lanes({dtype})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Any) -> None:
        scalar = ir.FloatType() if lanes.dtype == types.float32 else ir.DoubleType()
        super().__init__(manager, lanes, ir.VectorType(scalar, lanes.width))  # type: ignore[no-untyped-call]


def _address(context: Any, builder: Any, lanes: Any, array: Any, value: Any, index: Any) -> Any:
    data = context.make_array(array)(context, builder, value).data
    return builder.bitcast(builder.gep(data, [index]), context.get_value_type(lanes).as_pointer())


def _emit_load(_typing: Any, array: Any, _index: Any) -> Any:
    lanes = Lanes(array.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_address(context, builder, lanes, array, *arguments), align=array.dtype.bitwidth // 8)

    return lanes(array, types.intp), generate


def _emit_store(_typing: Any, array: Any, _index: Any, lanes: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value, index, vector = arguments
        builder.store(vector, _address(context, builder, lanes, array, value, index), align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.none(array, types.intp, lanes), generate


def _emit_width(_typing: Any, array: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.get_constant(types.intp, Lanes(array.dtype).width)

    return types.intp(array), generate


def _emit_splat(_typing: Any, number: Any) -> Any:
    lanes = Lanes(number)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        nothing = ir.Constant(context.get_value_type(lanes), ir.Undefined)
        first = builder.insert_element(nothing, arguments[0], ir.IntType(32)(0))
        return builder.shuffle_vector(first, nothing, _places(0 for _ in range(lanes.width)))

    return lanes(number), generate


def _emit_total(_typing: Any, lanes: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector, half = arguments[0], lanes.width
        while half > 1:  # the second half onto the first
            half //= 2
            lower, upper = _places(range(half)), _places(range(half, 2 * half))
            vector = builder.fadd(*(builder.shuffle_vector(vector, vector, part) for part in (lower, upper)))
            if half == 4 and lanes.dtype == types.float32:
                vector = builder.fpext(vector, ir.VectorType(ir.DoubleType(), half))
        return builder.extract_element(vector, ir.IntType(32)(0))

    return types.float64(lanes), generate


def _emit_totals(_typing: Any, lanes: Any, _b: Any, _c: Any, _d: Any) -> Any:
    w, unit = lanes.width, 128 // lanes.dtype.bitwidth  # places within 16 bytes cost least to move between

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
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

    return lanes(lanes, lanes, lanes, lanes), generate


def _emit_larger(_typing: Any, a: Any, b: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *arguments), *arguments)

    return a(a, b), generate


def _emit_choose(_typing: Any, a: Any, b: Any, x: Any, y: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *arguments[:2]), *arguments[2:])

    return a(a, b, x, y), generate


def _places(numbers: Any) -> Any:
    places = list(numbers)
    return ir.Constant(ir.VectorType(ir.IntType(32), len(places)), places)


_infer: Any = infer_global
_lower: Any = lower_builtin


class _Alike(AbstractTemplate):
    """Lanes and lanes of the same kind give such lanes."""

    def generic(self, arguments: Any, keywords: Any) -> Any:
        a = arguments[0]
        return a(a, a) if isinstance(a, Lanes) and arguments == (a, a) else None


def _arithmetic(sign: Any, name: str) -> None:
    """Teach the compiler one operator. Not by `overload`, which would be asked about every sum of integers, slowly."""

    def compute(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return getattr(builder, name)(*arguments, flags=_FLAGS)

    _infer(sign)(type(f"_{name}", (_Alike,), {"key": sign}))
    _lower(sign, Lanes, Lanes)(compute)


_arithmetic(operator.add, "fadd")
_arithmetic(operator.sub, "fsub")
_arithmetic(operator.mul, "fmul")
_arithmetic(operator.truediv, "fdiv")

# width(array): how many numbers of its type are lanes.
width: Any = intrinsic(_emit_width)
# load(array, index), store(array, index, lanes): array[index : index + width], contiguous; nothing is checked.
load: Any = intrinsic(_emit_load)
store: Any = intrinsic(_emit_store)
# splat(number): lanes that are all this number.
splat: Any = intrinsic(_emit_splat)
# totals(a, b, c, d): lanes of which those at k, k + 4, … add up to the sum of the k-th argument.
totals: Any = intrinsic(_emit_totals)
# larger(lanes, lanes): the larger one of each two.
larger: Any = intrinsic(_emit_larger)
# choose(a, b, x, y): x where a > b, else y.
choose: Any = intrinsic(_emit_choose)
# total(lanes): their sum, float64.
total: Any = intrinsic(_emit_total)


def _emit_prefetch(_typing: Any, array: Any, _index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(array)(context, builder, arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        builder.call(
            prefetch, [pointer, number(0), number(3), number(1)]
        )  # to read (to write is slower); first level; data
        return context.get_dummy_value()

    return types.none(array, types.intp), generate


# prefetch(array, index) asks for the cache line of array.flat[index] ahead of its use; any index is allowed.
prefetch: Any = intrinsic(_emit_prefetch)
