// SPDX-License-Identifier: Apache-2.0

package ai.tvmflow;

import java.util.Arrays;

/** An input or output of a network. */
public final class Tensor {
    /** Number of values in the library's description of a tensor. */
    static final int NUMBERS = 14;

    /** Types of elements, in the order of {@code tvmflow_dtype} in {@code tvmflow.h}. */
    public enum DType {
        FLOAT32,
        FLOAT16,
        FLOAT64,
        BFLOAT16,
        INT8,
        INT16,
        INT32,
        INT64,
        UINT8,
        UINT16,
        UINT32,
        UINT64,
        BOOL;

        int code() {
            return ordinal();
        }
    }

    /** Name in the ONNX model. */
    public final String name;

    /** Empty, or {@code "NCHW4c"} for a tensor in blocks of four channels. */
    public final String layout;

    public final DType dtype;

    /** Bytes of all elements. */
    public final int bytes;

    private final long[] shape;

    private Tensor(String name, String layout, DType dtype, int bytes, long[] shape) {
        this.name = name;
        this.layout = layout;
        this.dtype = dtype;
        this.bytes = bytes;
        this.shape = shape;
    }

    /** Returns a tensor from the library's texts (name, zero, layout) and numbers. */
    static Tensor of(String texts, long[] numbers) {
        int end = texts.indexOf('\0');
        return new Tensor(
                texts.substring(0, end),
                texts.substring(end + 1),
                DType.values()[(int) numbers[0]],
                Math.toIntExact(numbers[1]),
                Arrays.copyOfRange(numbers, 6, 6 + (int) numbers[5]));
    }

    /** Returns the extents, outermost first; empty for a scalar. */
    public long[] shape() {
        return shape.clone();
    }

    @Override
    public String toString() {
        return name + ": " + dtype.name().toLowerCase(java.util.Locale.ROOT) + Arrays.toString(shape);
    }
}
