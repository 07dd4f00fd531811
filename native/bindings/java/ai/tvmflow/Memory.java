// SPDX-License-Identifier: Apache-2.0

package ai.tvmflow;

/** Memory of a model, in bytes. */
public final class Memory {
    static final int NUMBERS = 5;

    /** Weights, on the device or mapped from the library. */
    public final long weights;

    /** Inputs, outputs and intermediate tensors, on the device. */
    public final long tensors;

    /** Copies of pictures, on the device. */
    public final long pictures;

    /** Memory in the process, without mapped weights. */
    public final long host;

    /** Whether the device reads the mapped weights without a copy. */
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
