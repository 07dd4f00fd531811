import ai.tvmflow.Kernel;
import ai.tvmflow.Model;
import ai.tvmflow.ModelOptions;
import java.io.File;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Paths;

/** Runs a library's network on a file of 32-bit floats, and writes its output to another one. */
public final class RunModel {
    public static void main(String[] arguments) throws Exception {
        ModelOptions options = new ModelOptions().cacheFolder(new File(arguments[1])).profile(true);
        try (Model model = Model.open(arguments[0], options)) {
            System.out.println(model.selfTest());
            model.setInput(0, ByteBuffer.wrap(Files.readAllBytes(Paths.get(arguments[2]))));
            model.run();
            ByteBuffer bytes = ByteBuffer.allocate(model.outputs().get(0).bytes);
            bytes.order(ByteOrder.nativeOrder()).asFloatBuffer().put(model.output(0));
            Files.write(Paths.get(arguments[3]), bytes.array());
            for (Kernel kernel : model.profile()) {
                System.out.println(kernel.name + " " + (kernel.endNanos >= kernel.startNanos));
            }
        }
    }
}
