"""Vector registers for numba kernels.

numba leaves vectorization to LLVM, which must assume that two arrays overlap and so keeps no sums in registers. These
few instructions say what is meant: ``LANES`` neighbouring numbers are loaded, multiplied by one number, added and
stored together. They serve any floating type and any processor; LLVM splits them into the registers that there are.

numba's cache does not notice when this file changes: save ``kernels.py`` again as well.
"""

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, models, register_model

LANES = 16  # numbers in a register: one of AVX-512, two of AVX2, four of NEON, in float32


class Lanes(types.Type):
    """``LANES`` numbers of one floating type."""

    def __init__(self, dtype: types.Float):
        super().__init__(name=f"Lanes({dtype})")
        self.dtype = dtype


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        number = dmm.lookup(fe_type.dtype).get_value_type()
        super().__init__(dmm, fe_type, ir.VectorType(number, LANES))


@intrinsic
def load(typing_context, array, row, column):
    """``array[row, column : column + LANES]`` of a C-contiguous 2-D array."""

    def generate(context, builder, signature, args):
        pointer, align = _address(context, builder, signature.args[0], *args)
        return builder.load(pointer, align=align)

    return Lanes(array.dtype)(array, types.intp, types.intp), generate


@intrinsic
def store(typing_context, array, row, column, values):
    """``array[row, column : column + LANES] = values`` for a C-contiguous 2-D array."""

    def generate(context, builder, signature, args):
        pointer, align = _address(context, builder, signature.args[0], *args[:3])
        builder.store(args[3], pointer, align=align)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, values), generate


@intrinsic
def multiply_add(typing_context, scale, values, total):
    """``scale * values + total``, rounded once where the processor can."""

    def generate(context, builder, signature, args):
        scale, values, total = args
        product = builder.fmul(_broadcast(builder, scale, values.type), values, flags=("contract",))
        return builder.fadd(product, total, flags=("contract",))

    return total(values.dtype, values, total), generate


def _address(context, builder, array_type, array, row, column):
    array = context.make_array(array_type)(context, builder, array)
    columns = builder.extract_value(array.shape, 1)
    place = builder.add(builder.mul(row, columns), column)
    number = context.get_value_type(array_type.dtype)
    pointer = builder.bitcast(builder.gep(array.data, [place]), ir.VectorType(number, LANES).as_pointer())
    return pointer, context.get_abi_sizeof(number)


def _broadcast(builder, number, vector):
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))
