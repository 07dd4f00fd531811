// SPDX-License-Identifier: Apache-2.0

package ai.tvmflow;

import java.io.File;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;

/** How a model is opened; what is not set is left to the library. */
public final class ModelOptions {
    private static final int PROFILE = 1;
    private static final int NO_COMMAND_BUFFER = 2;
    private static final int UNCHECKED_WEIGHTS = 4;
    private static final int PIN_THREADS = 8;
    private static final int CHOOSE_FASTER = 16;

    /** Of a model's runs among what else the device does. */
    public enum Priority {
        DEFAULT,
        /** Frames that are drawn come first. */
        LOW,
        HIGH
    }

    /** Of a line of the log. */
    public enum Level {
        /** What was chosen, built, taken from the cache. */
        INFO,
        /** What could not be used, and what is used instead. */
        WARNING
    }

    /** Gets the lines of the log. */
    public interface Log {
        /** A sentence, on the thread that is in a call of the model; it must not call the model. */
        void line(Level level, String text);
    }

    /** What kernels run on, of those that the library has. */
    public enum Backend {
        /** OpenCL where it can be used and passes the self-test, else the CPU. */
        AUTO,
        OPENCL,
        CPU
    }

    private File cacheFolder;
    private File weights;
    private String openclLibrary;
    private int device;
    private int flags;
    private Backend backend = Backend.AUTO;
    private Priority priority = Priority.DEFAULT;
    private int cpuThreads;
    private Log log;

    /**
     * Where built kernels are kept, so that the next start need not build them. On Android {@code
     * context.getCodeCacheDir()}, which the system empties when the application is updated.
     */
    public ModelOptions cacheFolder(File folder) {
        cacheFolder = folder;
        return this;
    }

    /** The file with large weights; without it, the one beside the library. */
    public ModelOptions weights(File file) {
        weights = file;
        return this;
    }

    /** The only OpenCL library to try. */
    public ModelOptions openclLibrary(String path) {
        openclLibrary = path;
        return this;
    }

    /** Which device runs the model, among all of them, GPUs first. */
    public ModelOptions device(int index) {
        if (index < 0) {
            throw new IllegalArgumentException("There is no device " + index + ".");
        }
        device = index;
        return this;
    }

    /** Lets {@link Model#profile} measure kernels, which makes every run a little slower. */
    public ModelOptions profile(boolean wanted) {
        return flag(PROFILE, wanted);
    }

    /** Whether kernels may be recorded once and replayed, where the driver can; they may. */
    public ModelOptions commandBuffers(boolean wanted) {
        return flag(NO_COMMAND_BUFFER, !wanted);
    }

    /** Whether weights are compared with their checksum; they are. Gigabytes take a second. */
    public ModelOptions checkWeights(boolean wanted) {
        return flag(UNCHECKED_WEIGHTS, !wanted);
    }

    /** What runs the model; {@link Backend#AUTO} where it is not set. */
    public ModelOptions backend(Backend wanted) {
        backend = wanted;
        return this;
    }

    /** Threads on the CPU, with the one that calls; 0 is one for each fast core. */
    public ModelOptions cpuThreads(int count) {
        if (count < 0) {
            throw new IllegalArgumentException("There cannot be " + count + " threads.");
        }
        cpuThreads = count;
        return this;
    }

    /** Whether each thread on the CPU stays on a core of its own; it need not. */
    public ModelOptions pinThreads(boolean wanted) {
        return flag(PIN_THREADS, wanted);
    }

    /**
     * Whether {@link Backend#AUTO} takes the CPU where it is faster: both run a few times at the
     * first start, and the cache folder remembers it.
     */
    public ModelOptions chooseFaster(boolean wanted) {
        return flag(CHOOSE_FASTER, wanted);
    }

    /** How the device shares its time, where its driver takes such hints. */
    public ModelOptions priority(Priority wanted) {
        priority = wanted;
        return this;
    }

    /** Who gets the lines of the log, also while the model is opened; what it throws is ignored. */
    public ModelOptions log(Log receiver) {
        log = receiver;
        return this;
    }

    private ModelOptions flag(int flag, boolean set) {
        flags = set ? flags | flag : flags & ~flag;
        return this;
    }

    /** For the library: an array is a line, a byte of its level before it. */
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

    /** In the order of {@code Native.open}. */
    long[] numbers() {
        return new long[] {device, flags, backend.ordinal(), cpuThreads, priority.ordinal()};
    }
}
