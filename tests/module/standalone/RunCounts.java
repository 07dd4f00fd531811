import ai.tvmflow.Model;
import java.io.File;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.util.Locale;

/** As the programs of {@code test_counts.py}: the library, and a file of seven floats a run. */
public final class RunCounts {
    public static void main(String[] arguments) throws Exception {
        byte[] all = Files.readAllBytes(new File(arguments[1]).toPath());
        ByteBuffer feeds = ByteBuffer.allocateDirect(all.length).order(ByteOrder.nativeOrder());
        feeds.put(all);
        try (Model model = Model.open(arguments[0])) {
            int y = model.outputIndex("y");
            System.out.printf(
                    "%s %d, %s, %s%n",
                    model.outputs().get(0).name,
                    model.outputs().get(0).shape()[0],
                    model.outputs().get(1).name,
                    model.outputs().get(2).name);
            for (int begin = 0; begin < all.length; begin += 28) {
                feeds.position(begin).limit(begin + 28);
                model.setInput(0, feeds);
                feeds.limit(all.length);
                model.run();
                float[] values = model.output(y);
                StringBuilder line = new StringBuilder();
                line.append(model.longOutput(model.outputIndex("places.count"))[0]).append(":");
                for (int i = 0; i < model.count(y); ++i) {
                    line.append(String.format(Locale.ROOT, " %s", values[i]));
                }
                System.out.println(line);
            }
            try {
                model.count(2);
            } catch (IllegalArgumentException error) {
                System.err.println(error.getMessage());
            }
        }
    }
}
