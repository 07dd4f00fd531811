// SPDX-License-Identifier: Apache-2.0

package ai.tvmflow;

/** Bytes that a model holds. */
public final class Memory {
    static final int NUMBERS = 5;

    /** Of weights, on the device or where they are mapped. */
    public final long weights;

    /** Of inputs, outputs and what is between kernels, on the device. */
    public final long tensors;

    /** Of copies of pictures, on the device. */
    public final long pictures;

    /** Of the process, besides the weights that are mapped. */
    public final long host;

    /** Whether the device uses the weights where they are mapped. */
    public final boolean weightsShared;

    Memory(long[] numbers) {
        weights = numbers[0];
        tensors = numbers[1];
        pictures = numbers[2];
        host = numbers[3];
        weightsShared = numbers[4] != 0;
    }

    @Override
    public String toString() {
        return String.format(
                java.util.Locale.ROOT,
                "weights %,d%s, tensors %,d, pictures %,d, host %,d bytes",
                weights,
                weightsShared ? " (used where they are mapped)" : "",
                tensors,
                pictures,
                host);
    }
}
