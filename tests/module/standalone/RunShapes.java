import ai.tvmflow.Model;
import ai.tvmflow.ModelException;
import ai.tvmflow.ModelOptions;
import java.io.File;
import java.util.Arrays;

/** Runs every shape of a library on an image of ones, and prints the first score of each. */
public final class RunShapes {
    public static void main(String[] arguments) {
        ModelOptions options = new ModelOptions().cacheFolder(new File(arguments[1]));
        try (Model model = Model.open(arguments[0], options)) {
            System.out.println(model.selfTest());
            for (int shape = model.shapes() - 1; shape >= 0; --shape) {
                model.chooseShape(shape);
                long[] extents = model.inputs().get(0).shape();
                model.chooseShape(0);
                model.setShape(0, extents);
                float[] ones = new float[model.inputs().get(0).bytes / Float.BYTES];
                Arrays.fill(ones, 1f);
                model.setInput(0, ones);
                model.run();
                System.out.println(model.shape() + " " + model.output(0)[0]);
            }
            try {
                model.setShape(0, 1, 3, 10, 31);
            } catch (ModelException error) {
                System.out.println(error.getMessage());
            }
        }
    }
}
