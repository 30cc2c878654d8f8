"""The exponential of lanes (see `utils.simd`), since math.exp does not become vector code.

exp(x) = 2^k exp(r), k = round(x / log 2), |r| <= log(2) / 2. log 2 is cut in two to make r exact; exp(r) is its Taylor
series, as long as terms are felt; 2^k is made of bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import e, factorial, log, log2
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic


@dataclass(frozen=True)
class _Format:
    """What differs between the floating-point formats."""

    terms: int
    least: float  # where exp(x) is about the smallest normal number
    high: float  # k * high is exact
    low: float  # log 2 - high
    bits: int
    mantissa: int
    bias: int


_FORMATS = {
    types.float32: _Format(8, -87.0, 355 / 512, log(2) - 355 / 512, 32, 23, 127),
    types.float64: _Format(14, -708.0, 6.93147180369123816490e-01, 1.90821492927058770002e-10, 64, 52, 1023),
}


def _emit_exp(_typing: Any, lanes: Any) -> Any:
    its = _FORMATS[lanes.dtype]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = context.get_value_type(lanes)
        whole = ir.VectorType(ir.IntType(its.bits), lanes.width)

        def splat(number: float, of: Any = kind) -> Any:
            return ir.Constant(of, [number] * lanes.width)

        add, subtract, times = (
            partial(operation, flags=("contract",)) for operation in (builder.fadd, builder.fsub, builder.fmul)
        )
        x, least = arguments[0], splat(its.least)
        x = builder.select(builder.fcmp_ordered("<", x, least), least, x)
        # x is not positive, so that cutting off rounds; 32 bits, for which processors have an instruction
        number = builder.fptosi(
            subtract(times(x, splat(log2(e))), splat(0.5)), ir.VectorType(ir.IntType(32), lanes.width)
        )
        k = builder.sitofp(number, kind)
        r = subtract(subtract(x, times(k, splat(its.high))), times(k, splat(its.low)))
        series = splat(1 / factorial(its.terms - 1))
        for n in reversed(range(its.terms - 1)):
            series = add(splat(1 / factorial(n)), times(r, series))
        exponent = builder.sext(number, whole) if its.bits > 32 else number
        power = builder.shl(builder.add(exponent, splat(its.bias, whole)), splat(its.mantissa, whole))
        return times(series, builder.bitcast(power, kind))

    return lanes(lanes), generate


# exp(lanes) for lanes <= 0, but not less than the smallest normal number.
exp: Any = intrinsic(_emit_exp)
