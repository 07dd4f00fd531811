// SPDX-License-Identifier: Apache-2.0

package ai.tvmflow;

/** One launch of a profiled run. */
public final class Kernel {
    public final String name;

    /** The primary function that contains the kernel. */
    public final String function;

    /** Times on the device's clock. */
    public final long startNanos;

    public final long endNanos;

    private Kernel(String name, String function, long startNanos, long endNanos) {
        this.name = name;
        this.function = function;
        this.startNanos = startNanos;
        this.endNanos = endNanos;
    }

    static Kernel parse(String line) {
        String[] parts = line.split("\t");
        return new Kernel(parts[0], parts[1], Long.parseLong(parts[2]), Long.parseLong(parts[3]));
    }

    @Override
    public String toString() {
        return name + ": " + (endNanos - startNanos) / 1e3 + " µs";
    }
}
