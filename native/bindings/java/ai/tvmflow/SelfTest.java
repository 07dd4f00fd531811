// SPDX-License-Identifier: Apache-2.0

package ai.tvmflow;

/** Difference between the device's results and those in the library. */
public final class SelfTest {
    /** Whether every element is within its tolerance. */
    public final boolean passed;

    /** Largest absolute error in all outputs. */
    public final double largestError;

    /** Largest ratio of an element's error to its tolerance; above 1 is wrong. */
    public final double toleranceUsed;

    /** Number of compared elements. */
    public final long compared;

    /** What was found, as JSON: see docs/standalone.md. */
    public final String report;

    SelfTest(
            boolean passed,
            double largestError,
            double toleranceUsed,
            long compared,
            String report) {
        this.report = report;
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
