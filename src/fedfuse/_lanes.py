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
from numba.extending import intrinsic, overload, register_model

# Bytes in the registers of most processors; LLVM cuts or joins where they have others.
BYTES = 32
_FLAGS = ("contract", "nsz")


class Lanes(types.Type):
    """As many numbers as there are in 32 bytes."""

    def __init__(self, dtype: Any) -> None:
        self.dtype, self.width = dtype, BYTES * 8 // dtype.bitwidth
        super().__init__(name=f"Lanes({dtype})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Any) -> None:
        scalar = ir.FloatType() if lanes.dtype == types.float32 else ir.DoubleType()
        super().__init__(manager, lanes, ir.VectorType(scalar, lanes.width))  # type: ignore[no-untyped-call]


def _address(context: Any, builder: Any, array: Any, value: Any, index: Any) -> Any:
    data = context.make_array(array)(context, builder, value).data
    kind = context.get_value_type(Lanes(array.dtype))
    return builder.bitcast(builder.gep(data, [index]), kind.as_pointer())


def _emit_load(_typing: Any, array: Any, _index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_address(context, builder, array, *arguments), align=array.dtype.bitwidth // 8)

    return Lanes(array.dtype)(array, types.intp), generate


def _emit_store(_typing: Any, array: Any, _index: Any, lanes: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value, index, vector = arguments
        builder.store(vector, _address(context, builder, array, value, index), align=array.dtype.bitwidth // 8)
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
    half = lanes.width // 2

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def fold(a: Any, b: Any, places: list[int], step: int) -> Any:
            parts = (builder.shuffle_vector(a, b, _places(p + step * k for p in places)) for k in (0, 1))
            return builder.fadd(*parts, flags=_FLAGS)

        # within 16 bytes, which costs least: neighbours, of one argument and then of the next
        pairs = [0, 2, 8, 10, 4, 6, 12, 14] if lanes.width == 8 else [0, 4, 2, 6]
        a, b = (fold(arguments[k], arguments[k + 1], pairs, 1) for k in (0, 2))
        return fold(a, b, pairs, 1) if lanes.width == 8 else fold(a, b, [0, 1, 4, 5], half)

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


def _arithmetic(name: str) -> Any:
    """Return what `overload` needs for one operator."""

    def emit(_typing: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return getattr(builder, name)(*arguments, flags=_FLAGS)

        return a(a, b), generate

    compute: Any = intrinsic(emit)
    return lambda a, b: (lambda a, b: compute(a, b)) if isinstance(a, Lanes) and a == b else None


for _sign, _name in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    overload(_sign)(_arithmetic(_name))

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
