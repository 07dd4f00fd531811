import ai.tvmflow.Model;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardCopyOption;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;

/**
 * Swaps the file at a path for one of two others, fifty times, while a thread calls what is open:
 * PATH LIBRARY LIBRARY-WITH-TENFOLD-RESULTS.
 */
public final class Swaps {
    private static final int SWAPS = 50;
    private static final float[] A = {1f, 2f, 3f, 4f, 5f, 6f};

    public static void main(String[] names) throws Exception {
        String path = names[0];
        replace(names[1], path);
        Model first = Model.open(path);
        AtomicBoolean ended = new AtomicBoolean();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        Thread caller =
                new Thread(
                        () -> {
                            try {
                                while (!ended.get()) {
                                    check(first, 4f);
                                }
                            } catch (Throwable error) {
                                failure.set(error);
                            }
                        });
        caller.start();
        Model last = Model.open(path);
        for (int swap = 1; swap <= SWAPS; ++swap) {
            replace(names[1 + swap % 2], path);
            Model next = Model.open(path);
            check(next, swap % 2 == 0 ? 4f : 40f);
            check(last, swap % 2 == 0 && swap > 1 ? 40f : 4f);
            last.close();
            last = next;
        }
        last.close();
        ended.set(true);
        caller.join();
        if (failure.get() != null) {
            throw new AssertionError(failure.get());
        }
        first.close();
        System.out.println("passed");
    }

    private static void replace(String source, String name) throws Exception {
        Path fresh = Paths.get(name + ".new");
        Files.copy(Paths.get(source), fresh);
        Files.move(fresh, Paths.get(name), StandardCopyOption.REPLACE_EXISTING);
    }

    private static void check(Model model, float answer) {
        model.setInput(0, A);
        model.setInput(1, A);
        model.run();
        if (model.output(0)[1] != answer) {
            throw new AssertionError("another version answered: " + model.output(0)[1]);
        }
    }
}
