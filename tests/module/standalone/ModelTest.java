import ai.tvmflow.Image;
import ai.tvmflow.ImageInfo;
import ai.tvmflow.Kernel;
import ai.tvmflow.Memory;
import ai.tvmflow.Model;
import ai.tvmflow.ModelException;
import ai.tvmflow.ModelOptions;
import ai.tvmflow.SelfTest;
import ai.tvmflow.Tensor;
import java.io.File;
import java.io.OutputStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.atomic.AtomicReference;

/** Uses `ai.tvmflow.Model` in every way, right and wrong, on the mock model. */
public final class ModelTest {
    private static final float[] A = {1f, 2f, 3f, 4f, 5f, 6f};
    private static final float[] B = {0.5f, -2f, 7f, 1e6f, 0f, -6f};
    private static final float[] SUM = {1.5f, 0f, 10f, 1000004f, 5f, 0f};

    public static void main(String[] arguments) throws Exception {
        String path = arguments[0];
        String tenfold = arguments[1];
        String foreign = arguments[2];
        String module = arguments[3];
        describesItself(path);
        takesPictures(path);
        tellsAndCancels(path);
        logs(path);
        namesWhatJavaHas(arguments[4]);
        runsOnArraysAndBuffers(path);
        givesIntegers(path);
        startsAndWaits(path);
        isOpenedByItsBareName();
        twoModels(path, tenfold);
        choosesShapes(path);
        refusesWrongData(path);
        reportsFailures(path, foreign, module);
        refusesToBeUsedClosed(path);
        nativesSurviveMisuse();
        measuresAndTests(path);
        runsInManyThreads(path, tenfold);
        System.out.println("passed");
    }

    private static void logs(String path) {
        List<String> lines = new ArrayList<>();
        ModelOptions options = new ModelOptions().log((level, text) -> lines.add(level + " " + text));
        Model.open(path, options).close();
        check(lines.toString().equals("[WARNING Grüße 𝄞: see Model.setInput.]"), lines.toString());
        // Failures have lines, too, and what a receiver throws harms nobody.
        ModelOptions failing = options.openclLibrary("fail create 2");
        expect(ModelException.class, "Creating the model failed", () -> Model.open(path, failing));
        check(lines.size() == 2, lines.toString());
        ModelOptions throwing =
                new ModelOptions()
                        .log(
                                (level, text) -> {
                                    throw new IllegalStateException(text);
                                });
        try (Model model = Model.open(path, throwing)) {
            check(model.outputs().size() == 1, "opened");
        }
    }

    /** Prints messages as Java has them. */
    private static void namesWhatJavaHas(String messages) throws Exception {
        Class<?> words = Class.forName("ai.tvmflow.Words");
        Method inJava = words.getDeclaredMethod("inJava", String.class);
        inJava.setAccessible(true);
        String plain = "tvmflow_inputs and tvmflow: my options";
        check(inJava.invoke(null, plain).equals("Model.inputs and tvmflow: my options"), plain);
        for (String line : Files.readAllLines(new File(messages).toPath())) {
            System.out.println(inJava.invoke(null, line));
        }
    }

    private static void tellsAndCancels(String path) {
        ModelOptions options = new ModelOptions().priority(ModelOptions.Priority.LOW)
                .performance(ModelOptions.Performance.HIGH);
        try (Model model = Model.open(path, options)) {
            check(model.inputIndex("b/𝄞") == 1 && model.outputIndex("sum") == 0, "index");
            expect(
                    IllegalArgumentException.class,
                    "There is no input 'c'",
                    () -> model.inputIndex("c"));
            Memory memory = model.memory();
            check(memory.weights == 1000 && memory.tensors == 200, "memory");
            check(memory.pictures == 30 && memory.host == 4 && memory.weightsShared, "memory");
            check(
                    memory.toString()
                            .equals(
                                    "weights 1,000 (used where they are mapped), tensors 200, "
                                            + "pictures 30, host 4 bytes"),
                    memory.toString());
            model.cancel();
            try {
                model.run();
                throw new AssertionError("it was cancelled");
            } catch (ModelException error) {
                check(error.status() == ModelException.Status.CANCELLED, error.toString());
            }
        }
        Model closed = Model.open(path, options);
        closed.close();
        closed.cancel();
    }

    private static void takesPictures(String path) {
        ByteBuffer levels = ByteBuffer.allocateDirect(8);
        for (int i = 0; i < 8; ++i) {
            levels.put(i, (byte) (10 * i));
        }
        // From the second level on; a copy where the buffer is not direct.
        levels.position(1);
        ByteBuffer copied = ByteBuffer.allocate(7);
        copied.put(levels.duplicate()).flip();
        try (Model model = Model.open(path)) {
            model.setInput(1, new float[6]);
            for (ByteBuffer pixels : new ByteBuffer[] {levels, copied}) {
                Image image = Image.of(pixels, 6, 1).rotation(180).strides(64);
                model.setImage(0, image);
                model.run();
                check(model.output(0)[0] == 60 && model.output(0)[5] == 10, "picture");
            }
            // Three planes of a camera, of which those of chroma lie within each other.
            ByteBuffer pairs = direct(4);
            pairs.put(0, (byte) 7).put(1, (byte) 8).put(2, (byte) 50).put(3, (byte) 60);
            ByteBuffer u = pairs.duplicate();
            u.limit(3);
            ByteBuffer v = pairs.duplicate();
            v.position(1);
            ByteBuffer luma = direct(9);
            luma.put(0, (byte) 1).put(1, (byte) 2).put(2, (byte) 3).put(3, (byte) 4);
            model.setImage(0, Image.ofYuv420(luma, u, v, 4, 2, 5, 6, 2).rotation(90));
            model.run();
            float[] sums = model.output(0);
            check(Arrays.equals(sums, new float[] {1, 2, 3, 4, 50, 60}), Arrays.toString(sums));
            expect(
                    ModelException.class,
                    "Setting planes failed",
                    () -> model.setImage(0, Image.ofYuv420(luma, u, v, 4, 2, 5, 6, 1).rotation(90)));
            ImageInfo info = model.imageInput(0);
            check(info.format == Image.Format.GREY8 && info.width == 6, info.toString());
            check(info.toString().equals("grey8 of 6x1"), info.toString());
            expect(
                    ModelException.class,
                    "Asking for pictures failed",
                    () -> model.imageInput(1));
            double[] place = model.imagePlace(0);
            check(Arrays.equals(place, new double[] {2, 3, -4, 5}), Arrays.toString(place));
            expect(
                    ModelException.class,
                    "Setting a picture failed",
                    () -> model.setImage(0, Image.of(levels, 6, 1)));
            // The buffer must have the pixels.
            levels.position(6);
            expect(
                    ModelException.class,
                    "Setting a picture failed",
                    () -> model.setImage(0, Image.of(levels, 6, 1).rotation(180).strides(64)));
            levels.position(8);
            expect(
                    IllegalArgumentException.class,
                    "has no bytes",
                    () -> model.setImage(0, Image.of(levels, 6, 1)));
            Object buffer = new Object();
            expect(
                    ModelException.class,
                    "Setting a picture failed",
                    () -> model.setImage(0, Image.ofHardwareBuffer(buffer, 6, 1)));
        }
    }

    private static void describesItself(String path) {
        ModelOptions options = new ModelOptions().cacheFolder(new File("/tmp/ü𝄞")).device(3);
        options.backend(ModelOptions.Backend.CPU).cpuThreads(5).pinThreads(true).chooseFaster(true);
        options.drivers("[\"ü\"]");
        try (Model model = Model.open(path, options)) {
            check(model.describe().contains("\"name\": \"sum 1\""), model.describe());
            check(model.describe().contains("\"cache\": \"/tmp/ü𝄞\""), model.describe());
            check(model.describe().contains("\"index\": 3"), model.describe());
            check(model.describe().contains("\"drivers\": [\"ü\"]"), model.describe());
            String chosen = "\"backend\": 2, \"threads\": 5, \"flags\": 24";
            check(model.describe().contains(chosen), model.describe());
            check(model.inputs().size() == 2 && model.outputs().size() == 1, model.toString());
            Tensor second = model.inputs().get(1);
            check(second.name.equals("b/𝄞"), second.name);
            check(second.dtype == Tensor.DType.FLOAT32 && second.bytes == 24, second.toString());
            check(Arrays.equals(second.shape(), new long[] {2, 3}), second.toString());
            check(second.layout.isEmpty(), second.layout);
            check(model.toString().contains("float32[2, 3]"), model.toString());
        }
    }

    private static void givesIntegers(String path) {
        try (Model model = Model.open(path, new ModelOptions().openclLibrary("integers"))) {
            model.setInput(0, A);
            model.setInput(1, B);
            model.run();
            int[] wanted = {1, 0, 10, 1000004, 5, 0};
            check(Arrays.equals(model.intOutput(0), wanted), "integers");
            expect(
                    IllegalArgumentException.class,
                    "'sum: int32[2, 3]' is not of 32-bit floats: use a ByteBuffer.",
                    () -> model.output(0));
        }
        try (Model model = Model.open(path)) {
            expect(
                    IllegalArgumentException.class,
                    "is not of 32-bit integers",
                    () -> model.intOutput(0));
        }
    }

    private static void runsOnArraysAndBuffers(String path) {
        try (Model model = Model.open(path)) {
            model.setInput(0, A);
            // Direct, at a position that is not its begin.
            ByteBuffer direct = ByteBuffer.allocateDirect(40).order(ByteOrder.nativeOrder());
            direct.position(8).limit(32);
            direct.slice().order(ByteOrder.nativeOrder()).asFloatBuffer().put(B);
            model.setInput(1, direct);
            check(direct.position() == 8, "the position moved");
            model.run();
            check(Arrays.equals(model.output(0), SUM), Arrays.toString(model.output(0)));

            // On the heap, twice: the memory behind it is used again.
            for (int round = 0; round < 2; ++round) {
                ByteBuffer heap = ByteBuffer.allocate(24).order(ByteOrder.nativeOrder());
                heap.asFloatBuffer().put(A);
                model.setInput(1, heap.asReadOnlyBuffer());
                model.run();
                ByteBuffer got = ByteBuffer.allocate(32).order(ByteOrder.nativeOrder());
                got.position(4).limit(28);
                model.getOutput(0, got);
                FloatBuffer floats = got.slice().order(ByteOrder.nativeOrder()).asFloatBuffer();
                check(floats.get(5) == 12f, "a heap buffer has " + floats.get(5));
                check(got.get(0) == 0 && got.get(28 - 1 + 0) != 0, "it was written beside");
            }
            direct.clear();
            direct.position(16);
            model.getOutput(0, direct);
            check(direct.getFloat(16) == 2f, "a direct buffer has " + direct.getFloat(16));
        }
    }

    private static void startsAndWaits(String path) {
        try (Model model = Model.open(path)) {
            model.setInput(0, A);
            model.setInput(1, B);
            model.start();
            expect(ModelException.class, "status 8", model::start);
            model.await();
            check(Arrays.equals(model.output(0), SUM), "after waiting");
        }
    }

    private static void isOpenedByItsBareName() {
        try (Model model = Model.open("mock")) {
            check(model.inputs().size() == 2, "by its bare name");
        }
    }

    private static void twoModels(String path, String tenfold) {
        try (Model first = Model.open(path);
                Model second = Model.open(tenfold);
                Model third = Model.open(path)) {
            for (Model model : Arrays.asList(first, second, third)) {
                model.setInput(0, A);
                model.setInput(1, B);
                model.run();
            }
            check(first.output(0)[0] == 1.5f, "the first model");
            check(second.output(0)[0] == 15f, "the second library's model");
            third.setInput(0, B);
            third.run();
            check(first.output(0)[2] == 10f && third.output(0)[2] == 14f, "two of one library");
        }
    }

    private static void choosesShapes(String path) {
        try (Model model = Model.open(path)) {
            check(model.shapes() == 2 && model.shape() == 0, "shapes");
            model.chooseShape(1);
            check(model.shape() == 1 && model.inputs().size() == 2, "the second shape");
            model.setShape(1, 2, 3);
            check(model.shape() == 0, "the first shape");
            Class<? extends Throwable> wrong = ModelException.class;
            expect(wrong, "Choosing a shape", () -> model.chooseShape(2));
            expect(wrong, "Choosing a shape", () -> model.chooseShape(-1));
            expect(wrong, "Setting a shape", () -> model.setShape(0, 2, 4));
            expect(wrong, "Setting a shape", () -> model.setShape(0));
            expect(wrong, "Setting a shape", () -> model.setShape(0, new long[1000]));
            expect(NullPointerException.class, null, () -> model.setShape(0, (long[]) null));
            model.setInput(0, A);
            model.setInput(1, B);
            model.run();
            check(Arrays.equals(model.output(0), SUM), Arrays.toString(model.output(0)));
        }
    }

    private static void refusesWrongData(String path) {
        try (Model model = Model.open(path)) {
            Class<? extends Throwable> wrong = IllegalArgumentException.class;
            expect(wrong, "takes 6 floats, but 5", () -> model.setInput(0, new float[5]));
            expect(wrong, "takes 24 bytes, but 25", () -> model.setInput(0, direct(25)));
            expect(wrong, "no input 2", () -> model.setInput(2, A));
            expect(wrong, "no input -1", () -> model.setInput(-1, A));
            expect(wrong, "no output 1", () -> model.output(1));
            expect(wrong, "but 7 were given", () -> model.getOutput(0, new float[7]));
            expect(wrong, "read-only", () -> model.getOutput(0, direct(24).asReadOnlyBuffer()));
            expect(wrong, "no device -1", () -> new ModelOptions().device(-1));
            expect(wrong, "be -1 threads", () -> new ModelOptions().cpuThreads(-1));
            Class<? extends Throwable> none = NullPointerException.class;
            expect(none, null, () -> model.setInput(0, (float[]) null));
            expect(none, null, () -> model.setInput(0, (ByteBuffer) null));
            expect(none, null, () -> model.getOutput(0, (float[]) null));
            expect(none, null, () -> model.getOutput(0, (ByteBuffer) null));
            expect(none, null, () -> Model.open(null));
            expect(none, null, () -> Model.open(path, null));
        }
    }

    private static void reportsFailures(String path, String foreign, String module) {
        for (ModelException.Status status : ModelException.Status.values()) {
            if (status == ModelException.Status.UNKNOWN) {
                continue;
            }
            int code = status.ordinal();
            ModelException error = openFailing(path, "fail create " + code);
            check(error.status() == status, error.status() + " for " + code);
            check(error.getMessage().contains("naïve 𝄞"), error.getMessage());
            check(error.getMessage().contains("Remedy: "), error.getMessage());
        }
        check(
                openFailing(path, "fail create 77").status() == ModelException.Status.UNKNOWN,
                "a status of the future");
        ModelOptions options = new ModelOptions().openclLibrary("fail run 7");
        try (Model model = Model.open(path, options)) {
            expect(ModelException.class, "Running failed", model::run);
            expect(ModelException.class, "status 7", model::start);
        }
        Class<? extends Throwable> failed = ModelException.class;
        expect(failed, "Opening the library /none.so failed", () -> Model.open("/none.so"));
        expect(failed, "Opening the library none failed", () -> Model.open("none"));
        expect(failed, "./mock.so", () -> Model.open("./mock.so"));
        expect(failed, "no function tvmflow_api_version", () -> Model.open(foreign));
        expect(failed, "compile it with --standalone", () -> Model.open(module));
    }

    private static ModelException openFailing(String path, String how) {
        try {
            Model.open(path, new ModelOptions().openclLibrary(how)).close();
        } catch (ModelException error) {
            return error;
        }
        throw new AssertionError(how + ": no exception");
    }

    private static void refusesToBeUsedClosed(String path) {
        Model model = Model.open(path);
        model.setInput(0, A);
        model.close();
        model.close();
        Class<? extends Throwable> closed = IllegalStateException.class;
        expect(closed, "closed", () -> model.setInput(0, A));
        expect(closed, "closed", () -> model.setInput(0, direct(24)));
        expect(closed, "closed", model::run);
        expect(closed, "closed", model::start);
        expect(closed, "closed", model::await);
        expect(closed, "closed", () -> model.output(0));
        expect(closed, "closed", model::describe);
        expect(closed, "closed", model::profile);
        expect(closed, "closed", model::selfTest);
        check(model.inputs().size() == 2, "what is known stays known");
    }

    /** The natives by themselves, with what the class never gives them. */
    private static void nativesSurviveMisuse() throws Exception {
        for (String name : new String[] {"Run", "Start", "Await", "Status"}) {
            check(call(name, new Class<?>[] {long.class}, 0L).equals(1), name);
        }
        call("Close", new Class<?>[] {long.class}, 0L);
        check(call("Profile", new Class<?>[] {long.class}, 0L) == null, "profile");
        check(call("Shapes", new Class<?>[] {long.class}, 0L).equals(0), "shapes");
        check(call("Shape", new Class<?>[] {long.class}, 0L).equals(0), "shape");
        check(((byte[]) call("Message", new Class<?>[] {long.class}, 0L)).length == 0, "message");
        check(((byte[]) call("Describe", new Class<?>[] {long.class}, 0L)).length == 0, "text");
        Class<?>[] open = {
            byte[].class,
            byte[].class,
            byte[].class,
            byte[].class,
            byte[].class,
            long[].class,
            OutputStream.class
        };
        long failed = (Long) call("Open", open, null, null, null, null, null, null, null);
        check(failed != 0, "a handle of what failed");
        check(call("Status", new Class<?>[] {long.class}, failed).equals(6), "its status");
        check(call("Run", new Class<?>[] {long.class}, failed).equals(1), "running it");
        call("Close", new Class<?>[] {long.class}, failed);

        byte[] name = (System.mapLibraryName("mock") + "").getBytes();
        long handle = (Long) call("Open", open, name, null, null, null, null, new long[2], null);
        check(call("Status", new Class<?>[] {long.class}, handle).equals(0), "opened");
        Class<?>[] copy = {
            long.class, int.class, int.class, ByteBuffer.class, int.class, int.class
        };
        for (String which : new String[] {"SetInput", "GetOutput"}) {
            check(call(which, copy, handle, 0, 0, null, 0, 24).equals(1), "no buffer");
            check(call(which, copy, handle, 0, 0, ByteBuffer.allocate(24), 0, 24).equals(1), "heap");
            check(call(which, copy, handle, 0, 0, direct(24), 1, 24).equals(1), "behind its end");
            check(call(which, copy, handle, 0, 0, direct(24), -1, 24).equals(1), "before it");
            check(call(which, copy, handle, 0, 0, direct(24), 0, -1).equals(1), "negative size");
            check(call(which, copy, handle, 9, 0, direct(24), 0, 24).equals(1), "no such tensor");
            check(call(which, copy, handle, 0, 99, direct(24), 0, 24).equals(1), "no such dtype");
            check(call(which, copy, 0L, 0, 0, direct(24), 0, 24).equals(1), "no model");
        }
        Class<?>[] tensor = {long.class, boolean.class, int.class, long[].class};
        check(call("Tensor", tensor, handle, false, 9, new long[14]) == null, "no such input");
        check(call("Tensor", tensor, handle, false, 0, null) == null, "no numbers");
        check(call("Tensor", tensor, handle, false, 0, new long[3]) == null, "few numbers");
        Class<?>[] test = {
            long.class, int.class, int.class, int.class, int.class, double[].class
        };
        check(call("SelfTest", test, handle, 0, 0, 0, 0, null).equals(1), "no array");
        check(call("SelfTest", test, handle, 0, 0, 0, 0, new double[2]).equals(1), "short array");
        long[] few = {6, 1};
        Class<?>[] planes = {
            long.class, int.class, long[].class, ByteBuffer.class, ByteBuffer.class,
            ByteBuffer.class, Object.class
        };
        long[] all = {6, 1, 180, -1, 64, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0};
        ByteBuffer six = direct(6);
        check(call("SetImage", planes, handle, 0, all, six, null, null, null).equals(0), "it");
        check(call("SetImage", planes, handle, 0, null, six, null, null, null).equals(1), "null");
        check(call("SetImage", planes, handle, 0, few, six, null, null, null).equals(1), "few");
        check(call("SetImage", planes, handle, 0, all, direct(5), null, null, null).equals(1), "e");
        // Planes without bytes are none.
        check(call("SetImage", planes, handle, 0, all, six, six, null, null).equals(1), "second");
        check(call("SetImage", planes, handle, 0, all, six, null, six, null).equals(1), "third");
        check(call("SetImage", planes, 0L, 0, all, six, null, null, null).equals(1), "no model");
        Class<?>[] input = {long.class, int.class, long[].class};
        check(call("ImageInput", input, handle, 0, null).equals(1), "no numbers");
        check(call("ImageInput", input, handle, 0, new long[2]).equals(1), "few numbers");
        Class<?>[] place = {long.class, int.class, double[].class};
        check(call("ImagePlace", place, handle, 0, null).equals(1), "no place");
        check(call("ImagePlace", place, handle, 0, new double[3]).equals(1), "short place");
        Class<?>[] memory = {long.class, long[].class};
        check(call("Memory", memory, handle, null).equals(1), "no numbers");
        check(call("Memory", memory, handle, new long[4]).equals(1), "few numbers");
        call("Cancel", new Class<?>[] {long.class}, 0L);
        call("Close", new Class<?>[] {long.class}, handle);
    }

    private static Object call(String name, Class<?>[] types, Object... values) throws Exception {
        Class<?> natives = Class.forName("ai.tvmflow.Native");
        String first = name.substring(0, 1).toLowerCase(Locale.ROOT);
        Method method = natives.getDeclaredMethod(first + name.substring(1), types);
        method.setAccessible(true);
        try {
            return method.invoke(null, values);
        } catch (InvocationTargetException error) {
            throw new AssertionError(name, error.getCause());
        }
    }

    private static void measuresAndTests(String path) {
        try (Model model = Model.open(path, new ModelOptions().profile(true))) {
            List<Kernel> kernels = model.profile();
            check(kernels.size() == 2, kernels.toString());
            check(kernels.get(0).name.equals("add_kernel"), kernels.toString());
            check(kernels.get(1).function.equals("scale"), kernels.toString());
            check(kernels.get(1).endNanos - kernels.get(1).startNanos == 1500, "its time");
            check(model.selfTest().passed, model.selfTest().toString());
            check(model.selfTest().compared == 6, model.selfTest().toString());
            check(model.selfTest(3, 1, 9, true).report.contains("functions"), "a report");
            model.tune(100);
            check(model.tuneProgress() == 0.75, "progress");
            check(model.awaitTuning().contains("used"), "a tuning's report");
            expect(ModelException.class, "Tuning failed", () -> model.tune(-1));
            expect(IllegalArgumentException.class, "runs -1", () -> model.selfTest(-1, 0, 0, false));
        }
        try (Model model = Model.open(path)) {
            expect(ModelException.class, "Profiling failed", model::profile);
        }
        try (Model model = Model.open(path, new ModelOptions().openclLibrary("fail test 9"))) {
            SelfTest test = model.selfTest();
            check(!test.passed && test.toleranceUsed == 14.0, test.toString());
            check(test.toString().startsWith("FAILED: 6 elements"), test.toString());
        }
        try (Model model = Model.open(path, new ModelOptions().openclLibrary("fail test 5"))) {
            expect(ModelException.class, "The self-test failed", model::selfTest);
        }
    }

    private static void runsInManyThreads(String path, String tenfold) throws Exception {
        AtomicReference<Throwable> failure = new AtomicReference<>();
        Model shared = Model.open(path);
        shared.setInput(0, A);
        shared.setInput(1, B);
        Thread[] threads = new Thread[8];
        for (int i = 0; i < threads.length; ++i) {
            boolean tens = i % 2 == 0;
            threads[i] =
                    new Thread(
                            () -> {
                                for (int round = 0; round < 50; ++round) {
                                    try (Model own = Model.open(tens ? tenfold : path)) {
                                        own.setInput(0, A);
                                        own.setInput(1, B);
                                        own.run();
                                        check(own.output(0)[4] == (tens ? 50f : 5f), "own");
                                        shared.run();
                                        check(shared.output(0)[4] == 5f, "shared");
                                    } catch (Throwable error) {
                                        failure.compareAndSet(null, error);
                                    }
                                }
                            });
            threads[i].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        shared.close();
        if (failure.get() != null) {
            throw new AssertionError(failure.get());
        }
    }

    private static ByteBuffer direct(int bytes) {
        return ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder());
    }

    private static void expect(
            Class<? extends Throwable> type, String part, Runnable action) {
        try {
            action.run();
        } catch (Throwable error) {
            check(type.isInstance(error), error + " and not " + type);
            check(part == null || error.getMessage().contains(part), error.getMessage());
            return;
        }
        throw new AssertionError("no " + type + " (" + part + ")");
    }

    private static void check(boolean condition, String message) {
        if (!condition) {
            throw new AssertionError(message);
        }
    }
}
