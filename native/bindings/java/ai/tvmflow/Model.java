// SPDX-License-Identifier: Apache-2.0

package ai.tvmflow;

import java.io.Closeable;
import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/**
 * A network in a library that {@code tvmflow compile --standalone} wrote.
 *
 * <pre>{@code
 * try (Model model = Model.open("mobilenet", new ModelOptions().cacheFolder(folder))) {
 *     model.setInput(0, image);          // float[] or ByteBuffer
 *     model.run();
 *     float[] scores = model.output(0);
 * }
 * }</pre>
 *
 * Methods may be called from any thread; calls of one model run one after the other, those of
 * different models at the same time. Failures of the library or the driver are a {@link
 * ModelException}; mistakes of the caller are an {@link IllegalArgumentException}, a {@link
 * NullPointerException} or, after {@link #close}, an {@link IllegalStateException}.
 */
public final class Model implements Closeable {
    // Tensors of the chosen shape.
    private List<Tensor> inputs;
    private List<Tensor> outputs;
    // Memory that the library can access, for data in arrays; allocated when needed.
    private ByteBuffer[] staging;
    /** Held while the model is closed, so that no other thread cancels a run of a freed model. */
    private final Object ending = new Object();

    private long handle;

    private Model(long handle) {
        this.handle = handle;
        look();
    }

    private void look() {
        inputs = tensors(false);
        outputs = tensors(true);
        staging = new ByteBuffer[inputs.size() + outputs.size()];
    }

    /** Opens a library with the default options: see {@link #open(String, ModelOptions)}. */
    public static Model open(String library) {
        return open(library, new ModelOptions());
    }

    /**
     * Opens a library, builds its kernels or loads them from the cache, and uploads the weights.
     * This takes from milliseconds to seconds: call it on a background thread.
     *
     * @param library {@code "mobilenet"} for {@code libmobilenet.so} of the application, or the
     *     absolute path of a file
     */
    public static Model open(String library, ModelOptions options) {
        boolean isPath = library.indexOf('/') >= 0;
        String file = isPath ? library : System.mapLibraryName(library);
        long handle;
        try {
            if (isPath) {
                System.load(library);
            } else {
                System.loadLibrary(library);
            }
            handle =
                    Native.open(
                            Native.utf8(file),
                            Native.utf8(options.cacheFolder()),
                            Native.utf8(options.weights()),
                            Native.utf8(options.openclLibrary()),
                            Native.utf8(options.drivers()),
                            options.numbers(),
                            options.logStream());
        } catch (UnsatisfiedLinkError error) {
            throw new ModelException(
                    ModelException.Status.DAMAGED,
                    "Opening the library " + library + " failed: " + reason(error),
                    error);
        }
        if (handle == 0) {
            throw new OutOfMemoryError("Opening the library " + library + " failed: no memory.");
        }
        try {
            Native.check(handle, Native.status(handle));
            return new Model(handle);
        } catch (RuntimeException | Error error) {
            Native.close(handle);
            throw error;
        }
    }

    /** Returns why a library was not loaded; modules need functions of TVM's runtime. */
    private static String reason(UnsatisfiedLinkError error) {
        String message = String.valueOf(error.getMessage());
        if (message.contains("TVMFFI") || message.contains("TVMBackend")) {
            return "it is a module for TVM's runtime, not a standalone library: compile it with "
                    + "--standalone";
        }
        return message;
    }

    /** Returns the network's inputs, in order, for the chosen shape. */
    public synchronized List<Tensor> inputs() {
        return inputs;
    }

    /** Returns the index of an input by its name in the ONNX model. */
    public synchronized int inputIndex(String name) {
        return index(inputs, "input", name);
    }

    /** Returns the index of an output by its name in the ONNX model. */
    public synchronized int outputIndex(String name) {
        return index(outputs, "output", name);
    }

    /** Returns the network's outputs, in order. */
    public synchronized List<Tensor> outputs() {
        return outputs;
    }

    /** Returns the number of shapes that the network was compiled for. */
    public synchronized int shapes() {
        return Native.shapes(opened());
    }

    /** Returns the index of the chosen shape, which is 0 at first. */
    public synchronized int shape() {
        return Native.shape(opened());
    }

    /** Chooses a shape by its index; all inputs must be set again. */
    public synchronized void chooseShape(int index) {
        Native.check(opened(), Native.chooseShape(handle, index));
        look();
    }

    /** Chooses the shape in which an input has these extents; all inputs must be set again. */
    public synchronized void setShape(int input, long... extents) {
        Native.check(opened(), Native.setShape(handle, input, extents.clone()));
        look();
    }

    /** Returns network, target, versions, memory, device and driver, as JSON. */
    public synchronized String describe() {
        return Native.text(Native.describe(opened()));
    }

    /**
     * Copies an input to the device, starting at the buffer's position, which stays unchanged. A
     * direct buffer in the machine's byte order is the fastest.
     */
    public synchronized void setInput(int index, ByteBuffer data) {
        Tensor tensor = tensor(inputs, "input", index);
        checkSize(tensor, data.remaining(), "bytes", tensor.bytes);
        ByteBuffer direct = data;
        if (!data.isDirect()) {
            direct = staged(index, tensor);
            direct.put(data.duplicate());
            // In older versions of Android only Buffer has the method.
            ((Buffer) direct).clear();
        }
        setInput(index, tensor, direct);
    }

    /** Copies an input of 32-bit floats to the device. */
    public synchronized void setInput(int index, float[] values) {
        Tensor tensor = tensor(inputs, "input", index);
        checkDType(tensor, Tensor.DType.FLOAT32, "floats");
        checkSize(tensor, values.length, "floats", tensor.bytes / Float.BYTES);
        ByteBuffer direct = staged(index, tensor);
        direct.asFloatBuffer().put(values);
        setInput(index, tensor, direct);
    }

    /** Sets a picture as an input compiled with {@code --image-input}. */
    public synchronized void setImage(int index, Image image) {
        Native.check(opened(), image.setOn(handle, index));
    }

    /** Returns which pictures an input compiled with {@code --image-input} accepts. */
    public synchronized ImageInfo imageInput(int index) {
        long[] numbers = new long[ImageInfo.NUMBERS];
        Native.check(opened(), Native.imageInput(handle, index, numbers));
        return new ImageInfo(numbers);
    }

    /**
     * Returns the mapping from the network's input to the last picture: point (x, y) of the input,
     * in pixels, is {@code (x * place[0] + place[2], y * place[1] + place[3])} in the upright
     * picture.
     */
    public synchronized double[] imagePlace(int index) {
        double[] place = new double[4];
        Native.check(opened(), Native.imagePlace(handle, index, place));
        return place;
    }

    /**
     * Runs once, unless a run of the shape has ended before, so that the driver's work at the first
     * launch does not delay a later run. Inputs that were not set become zeros.
     */
    public synchronized void warmUp() {
        Native.check(opened(), Native.warmUp(handle));
    }

    /** Runs the network and waits for the end. */
    public synchronized void run() {
        Native.check(opened(), Native.run(handle));
    }

    /** Starts a run and returns at once; {@link #await} or {@link #getOutput} waits for it. */
    public synchronized void start() {
        Native.check(opened(), Native.start(handle));
    }

    /** Waits for the started run. */
    public synchronized void await() {
        Native.check(opened(), Native.await(handle));
    }

    /**
     * Cancels the run of another thread, whose call then fails with {@link
     * ModelException.Status#CANCELLED}; without a run nothing happens.
     */
    public void cancel() {
        synchronized (ending) {
            if (handle != 0) {
                Native.cancel(handle);
            }
        }
    }

    /** Returns the model's use of memory. */
    public synchronized Memory memory() {
        long[] numbers = new long[Memory.NUMBERS];
        Native.check(opened(), Native.memory(handle, numbers));
        return new Memory(numbers);
    }

    /** Copies an output into the buffer, starting at its position, which stays unchanged. */
    public synchronized void getOutput(int index, ByteBuffer data) {
        Tensor tensor = tensor(outputs, "output", index);
        checkSize(tensor, data.remaining(), "bytes", tensor.bytes);
        if (data.isReadOnly()) {
            throw new IllegalArgumentException(
                    "The output '" + tensor.name + "' cannot be written to a read-only buffer.");
        }
        if (data.isDirect()) {
            getOutput(index, tensor, data);
            return;
        }
        ByteBuffer direct = staged(inputs.size() + index, tensor);
        getOutput(index, tensor, direct);
        data.duplicate().put(direct.duplicate());
    }

    /** Copies an output of 32-bit floats into an array. */
    public synchronized void getOutput(int index, float[] values) {
        Tensor tensor = tensor(outputs, "output", index);
        checkDType(tensor, Tensor.DType.FLOAT32, "floats");
        checkSize(tensor, values.length, "floats", tensor.bytes / Float.BYTES);
        ByteBuffer direct = staged(inputs.size() + index, tensor);
        getOutput(index, tensor, direct);
        direct.asFloatBuffer().get(values);
    }

    /** Returns an output of 32-bit floats in a new array. */
    public float[] output(int index) {
        float[] values = new float[tensor(outputs, "output", index).bytes / Float.BYTES];
        getOutput(index, values);
        return values;
    }

    /** Returns an output of 32-bit integers, such as indices of classes, in a new array. */
    public synchronized int[] intOutput(int index) {
        Tensor tensor = tensor(outputs, "output", index);
        checkDType(tensor, Tensor.DType.INT32, "integers");
        ByteBuffer direct = staged(inputs.size() + index, tensor);
        getOutput(index, tensor, direct);
        int[] values = new int[tensor.bytes / Integer.BYTES];
        direct.asIntBuffer().get(values);
        return values;
    }

    /** Returns an output of 64-bit integers in a new array. */
    public synchronized long[] longOutput(int index) {
        Tensor tensor = tensor(outputs, "output", index);
        if (tensor.dtype != Tensor.DType.INT64) {
            throw new IllegalArgumentException(
                    "'" + tensor + "' is not of 64-bit integers: use a ByteBuffer.");
        }
        ByteBuffer direct = staged(inputs.size() + index, tensor);
        getOutput(index, tensor, direct);
        long[] values = new long[tensor.bytes / Long.BYTES];
        direct.asLongBuffer().get(values);
        return values;
    }

    /**
     * Returns the number of valid elements in an output whose size differs between runs, such as
     * the remaining boxes; further elements have no meaning.
     */
    public synchronized int count(int index) {
        String name = tensor(outputs, "output", index).name + ".count";
        return Math.toIntExact(longOutput(outputIndex(name))[0]);
    }

    /**
     * Runs once and measures every kernel on the device's clock; the model must have been opened
     * with {@link ModelOptions#profile}.
     */
    public synchronized List<Kernel> profile() {
        byte[] lines = Native.profile(opened());
        if (lines == null) {
            throw Native.failure(handle);
        }
        List<Kernel> kernels = new ArrayList<>();
        for (String line : Native.text(lines).split("\n")) {
            if (!line.isEmpty()) {
                kernels.add(Kernel.parse(line));
            }
        }
        return Collections.unmodifiableList(kernels);
    }

    /**
     * Runs the test input in the library and compares the results with those in the library, to
     * find out whether this device's driver can be trusted. Afterwards the inputs are the test's.
     */
    public synchronized SelfTest selfTest() {
        return selfTest(0, 0, 0, false);
    }

    /**
     * The same, with more runs, whose outputs must be equal to the last bit.
     *
     * <p>A library of {@code --alternatives safe} compares the tensors between its functions, too,
     * and from then on uses plain kernels for those that are wrong or differ between runs.
     *
     * @param runs how many more runs
     * @param pauseMs pause before the second half of them, in milliseconds
     * @param budgetMs time after which no run begins, in milliseconds; 0 is no limit
     * @param secondInstance whether another instance of the library runs at the same time
     */
    public synchronized SelfTest selfTest(int runs, int pauseMs, int budgetMs, boolean secondInstance) {
        if (runs < 0 || pauseMs < 0 || budgetMs < 0) {
            throw new IllegalArgumentException(
                    "Self-test: runs " + runs + ", pause " + pauseMs + " ms and budget " + budgetMs
                            + " ms were expected to be 0 or more.");
        }
        double[] numbers = new double[3];
        int status = Native.selfTest(opened(), runs, pauseMs, budgetMs, secondInstance ? 1 : 0, numbers);
        boolean wrong = status == ModelException.Status.WRONG.code;
        if (!wrong) {
            Native.check(handle, status);
        }
        String report = Native.text(Native.testReport(handle));
        return new SelfTest(!wrong, numbers[0], numbers[1], (long) numbers[2], report);
    }

    /**
     * Begins to time the choices in a library of {@code --choices N} on this device, in a thread of
     * its own and while the model does not run. Choices that give the right results and are faster
     * are used from the next call on, and at once in later starts with this cache folder.
     *
     * @param budgetMs time that the device and its compiler may work, in milliseconds; the next
     *     tuning goes on from there
     */
    public synchronized void tune(int budgetMs) {
        Native.check(opened(), Native.tune(opened(), Math.max(0, budgetMs)));
    }

    /** Waits for the end of the tuning, and returns its result as JSON: see docs/standalone.md. */
    public synchronized String awaitTuning() {
        Native.check(opened(), Native.tuneWait(opened()));
        return tuneReport();
    }

    /** Returns the share of the tuning that is done, up to 1. */
    public synchronized double tuneProgress() {
        return Native.tuneProgress(opened());
    }

    /** Returns the result of the last tuning that has ended, as JSON; "{}" without one. */
    public synchronized String tuneReport() {
        return Native.text(Native.tuneReport(opened()));
    }

    /** Frees the device's memory; a second call does nothing. */
    @Override
    public synchronized void close() {
        synchronized (ending) {
            if (handle != 0) {
                Native.close(handle);
                handle = 0;
            }
        }
    }

    @Override
    public synchronized String toString() {
        return "Model " + inputs + " -> " + outputs;
    }

    private long opened() {
        if (handle == 0) {
            throw new IllegalStateException("The model was closed.");
        }
        return handle;
    }

    private List<Tensor> tensors(boolean output) {
        List<Tensor> found = new ArrayList<>();
        for (int index = 0; index < Native.count(handle, output); ++index) {
            long[] numbers = new long[Tensor.NUMBERS];
            byte[] texts = Native.tensor(handle, output, index, numbers);
            if (texts == null) {
                throw Native.failure(handle);
            }
            found.add(Tensor.of(Native.text(texts), numbers));
        }
        return Collections.unmodifiableList(found);
    }

    private static Tensor tensor(List<Tensor> tensors, String kind, int index) {
        if (index < 0 || index >= tensors.size()) {
            throw new IllegalArgumentException(
                    "There is no " + kind + " " + index + "; the network has " + tensors + ".");
        }
        return tensors.get(index);
    }

    private static int index(List<Tensor> tensors, String kind, String name) {
        for (int i = 0; i < tensors.size(); ++i) {
            if (tensors.get(i).name.equals(name)) {
                return i;
            }
        }
        throw new IllegalArgumentException(
                "There is no " + kind + " '" + name + "'; the network has " + tensors + ".");
    }

    private static void checkSize(Tensor tensor, long found, String unit, long expected) {
        if (found != expected) {
            throw new IllegalArgumentException(
                    String.format(
                            "'%s' takes %d %s, but %d were given.",
                            tensor, expected, unit, found));
        }
    }

    private static void checkDType(Tensor tensor, Tensor.DType wanted, String numbers) {
        if (tensor.dtype != wanted) {
            throw new IllegalArgumentException(
                    "'" + tensor + "' is not of 32-bit " + numbers + ": use a ByteBuffer.");
        }
    }

    private ByteBuffer staged(int place, Tensor tensor) {
        if (staging[place] == null) {
            staging[place] =
                    ByteBuffer.allocateDirect(tensor.bytes).order(ByteOrder.nativeOrder());
        }
        return staging[place];
    }

    private void setInput(int index, Tensor tensor, ByteBuffer direct) {
        int dtype = tensor.dtype.code();
        int position = direct.position();
        Native.check(
                opened(),
                Native.setInput(handle, index, dtype, direct, position, tensor.bytes));
    }

    private void getOutput(int index, Tensor tensor, ByteBuffer direct) {
        int dtype = tensor.dtype.code();
        int position = direct.position();
        Native.check(
                opened(),
                Native.getOutput(handle, index, dtype, direct, position, tensor.bytes));
    }
}
