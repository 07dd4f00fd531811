package ai.tvmflow;

import java.nio.Buffer;
import java.nio.ByteBuffer;

/**
 * A picture for an input that was compiled with {@code --image-input}, in the format that the
 * network takes. Pixels are read when {@link Model#setImage} is called, from the buffers' positions
 * on; direct buffers, as cameras give them, are not copied in Java.
 */
public final class Image {
    private final int width;
    private final int height;
    private final ByteBuffer[] planes = new ByteBuffer[2];
    private final int[] strides = new int[2];
    private Object hardwareBuffer;
    private int rotation;

    private Image(int width, int height) {
        this.width = width;
        this.height = height;
    }

    /** Pixels of one plane: all formats, NV12 and NV21 where their planes follow each other. */
    public static Image of(ByteBuffer pixels, int width, int height) {
        Image image = new Image(width, height);
        image.planes[0] = direct(pixels);
        return image;
    }

    /** Two planes, luma and pairs of chroma, of NV12 and NV21. */
    public static Image of(ByteBuffer luma, ByteBuffer chroma, int width, int height) {
        Image image = of(luma, width, height);
        image.planes[1] = direct(chroma);
        return image;
    }

    /**
     * An {@code android.hardware.HardwareBuffer}, which the device's driver reads where it lies. It
     * must not be closed or written until the run is done.
     */
    public static Image ofHardwareBuffer(Object hardwareBuffer, int width, int height) {
        Image image = new Image(width, height);
        image.hardwareBuffer = hardwareBuffer;
        return image;
    }

    /** Bytes from one row to the next, of each plane; without it there are no gaps. */
    public Image strides(int... bytes) {
        if (bytes.length < 1 || bytes.length > 2) {
            throw new IllegalArgumentException("A picture has one or two planes.");
        }
        System.arraycopy(bytes, 0, strides, 0, bytes.length);
        return this;
    }

    /**
     * Degrees clockwise until the picture is upright: 0, 90, 180 or 270, as CameraX's {@code
     * ImageInfo.getRotationDegrees} tells them.
     */
    public Image rotation(int degrees) {
        rotation = degrees;
        return this;
    }

    int setOn(long handle, int index) {
        long[] numbers = new long[9];
        numbers[0] = width;
        numbers[1] = height;
        numbers[2] = rotation;
        for (int i = 0; i < 2; ++i) {
            numbers[3 + 3 * i] = strides[i];
            if (planes[i] != null) {
                numbers[4 + 3 * i] = planes[i].position();
                numbers[5 + 3 * i] = planes[i].remaining();
                if (!planes[i].hasRemaining()) {
                    throw new IllegalArgumentException("A plane of the picture has no bytes.");
                }
            }
        }
        return Native.setImage(handle, index, numbers, planes[0], planes[1], hardwareBuffer);
    }

    private static ByteBuffer direct(ByteBuffer pixels) {
        if (pixels.isDirect()) {
            return pixels;
        }
        ByteBuffer copy = ByteBuffer.allocateDirect(pixels.remaining());
        copy.put(pixels.duplicate());
        // Older Androids have the method in Buffer only.
        ((Buffer) copy).clear();
        return copy;
    }
}
