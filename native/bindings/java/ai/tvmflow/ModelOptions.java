// SPDX-License-Identifier: Apache-2.0

package ai.tvmflow;

import java.io.File;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;

/** Options for opening a model; the library chooses those that are not set. */
public final class ModelOptions {
    private static final int PROFILE = 1;
    private static final int NO_COMMAND_BUFFER = 2;
    private static final int UNCHECKED_WEIGHTS = 4;
    private static final int PIN_THREADS = 8;
    private static final int CHOOSE_FASTER = 16;

    /** Priority of a model's runs among other work of the device. */
    public enum Priority {
        DEFAULT,
        /** Below the drawing of frames. */
        LOW,
        HIGH
    }

    /** Clocks of the GPU, and the energy that they take: a hint for Qualcomm's drivers. */
    public enum Performance {
        DEFAULT,
        HIGH,
        NORMAL,
        LOW
    }

    /** Level of a line of the log. */
    public enum Level {
        /** Choices, builds, hits in the cache. */
        INFO,
        /** Failures, and what is used instead. */
        WARNING
    }

    /** Receiver of the lines of the log. */
    public interface Log {
        /** Receives a sentence, on a thread that calls the model; it must not call the model. */
        void line(Level level, String text);
    }

    /** Backend that runs kernels, of those in the library. */
    public enum Backend {
        /** OpenCL if it is usable and passes the self-test, otherwise the CPU. */
        AUTO,
        OPENCL,
        CPU
    }

    private File cacheFolder;
    private File weights;
    private String openclLibrary;
    private String drivers;
    private int device;
    private int flags;
    private Backend backend = Backend.AUTO;
    private Priority priority = Priority.DEFAULT;
    private Performance performance = Performance.DEFAULT;
    private int cpuThreads;
    private Log log;

    /**
     * Sets the folder for built kernels, so that the next start need not build them. On Android use
     * {@code context.getCodeCacheDir()}, which the system clears when the application is updated.
     */
    public ModelOptions cacheFolder(File folder) {
        cacheFolder = folder;
        return this;
    }

    /** Sets the file with large weights; by default it is the one next to the library. */
    public ModelOptions weights(File file) {
        weights = file;
        return this;
    }

    /** Sets the only OpenCL library to try. */
    public ModelOptions openclLibrary(String path) {
        openclLibrary = path;
        return this;
    }

    /** Adds known faults of drivers to those in the library, as JSON (docs/standalone.md). */
    public ModelOptions drivers(String json) {
        drivers = json;
        return this;
    }

    /** Sets the index of the device among all devices, GPUs first. */
    public ModelOptions device(int index) {
        if (index < 0) {
            throw new IllegalArgumentException("There is no device " + index + ".");
        }
        device = index;
        return this;
    }

    /** Enables {@link Model#profile}, which makes every run slightly slower. */
    public ModelOptions profile(boolean wanted) {
        return flag(PROFILE, wanted);
    }

    /** Sets whether kernels are recorded once and replayed if the driver can; default true. */
    public ModelOptions commandBuffers(boolean wanted) {
        return flag(NO_COMMAND_BUFFER, !wanted);
    }

    /** Sets whether weights are checked, a second for gigabytes; default true. */
    public ModelOptions checkWeights(boolean wanted) {
        return flag(UNCHECKED_WEIGHTS, !wanted);
    }

    /** Sets the backend that runs the model; default {@link Backend#AUTO}. */
    public ModelOptions backend(Backend wanted) {
        backend = wanted;
        return this;
    }

    /** Sets the threads on the CPU, including the calling one; 0 is one for each fast core. */
    public ModelOptions cpuThreads(int count) {
        if (count < 0) {
            throw new IllegalArgumentException("There cannot be " + count + " threads.");
        }
        cpuThreads = count;
        return this;
    }

    /** Sets whether each thread on the CPU is pinned to a different core; default false. */
    public ModelOptions pinThreads(boolean wanted) {
        return flag(PIN_THREADS, wanted);
    }

    /**
     * Sets whether {@link Backend#AUTO} chooses the CPU if it is faster: both run a few times at
     * the first start, and the result is stored in the cache folder.
     */
    public ModelOptions chooseFaster(boolean wanted) {
        return flag(CHOOSE_FASTER, wanted);
    }

    /** Sets the priority among queues of the device, a hint for drivers that support it. */
    public ModelOptions priority(Priority wanted) {
        priority = wanted;
        return this;
    }

    /** Sets the clocks of the GPU, a hint for drivers that support it. */
    public ModelOptions performance(Performance wanted) {
        performance = wanted;
        return this;
    }

    /** Sets the receiver of the log, also of opening the model; its exceptions are ignored. */
    public ModelOptions log(Log receiver) {
        log = receiver;
        return this;
    }

    private ModelOptions flag(int flag, boolean set) {
        flags = set ? flags | flag : flags & ~flag;
        return this;
    }

    /** Returns the library's log: each array is a byte for the level, then a line. */
    OutputStream logStream() {
        final Log receiver = log;
        if (receiver == null) {
            return null;
        }
        return new OutputStream() {
            @Override
            public void write(int ignored) {}

            @Override
            public void write(byte[] line) {
                String text = new String(line, 1, line.length - 1, StandardCharsets.UTF_8);
                receiver.line(Level.values()[line[0]], Words.inJava(text));
            }
        };
    }

    File cacheFolder() {
        return cacheFolder;
    }

    File weights() {
        return weights;
    }

    String openclLibrary() {
        return openclLibrary;
    }

    String drivers() {
        return drivers;
    }

    /** Returns the numbers in the order of {@code Native.open}. */
    long[] numbers() {
        return new long[] {
            device, flags, backend.ordinal(), cpuThreads, priority.ordinal(), performance.ordinal()
        };
    }
}
