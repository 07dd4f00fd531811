// SPDX-License-Identifier: Apache-2.0

package ai.tvmflow;

/** How far the device's results are from those that the library carries. */
public final class SelfTest {
    /** Whether every element is within its tolerance. */
    public final boolean passed;

    /** Absolute, over all outputs. */
    public final double largestError;

    /** The largest part of an element's tolerance that its error takes; above 1 is wrong. */
    public final double toleranceUsed;

    /** How many elements were compared. */
    public final long compared;

    SelfTest(boolean passed, double largestError, double toleranceUsed, long compared) {
        this.passed = passed;
        this.largestError = largestError;
        this.toleranceUsed = toleranceUsed;
        this.compared = compared;
    }

    @Override
    public String toString() {
        return String.format(
                java.util.Locale.ROOT,
                "%s: %d elements, largest error %.3g, %.3g of the tolerance",
                passed ? "passed" : "FAILED",
                compared,
                largestError,
                toleranceUsed);
    }
}
