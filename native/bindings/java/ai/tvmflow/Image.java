// SPDX-License-Identifier: Apache-2.0

package ai.tvmflow;

import java.nio.Buffer;
import java.nio.ByteBuffer;

/**
 * A picture for an input that was compiled with {@code --image-input}. Pixels are read when {@link
 * Model#setImage} is called, from the buffers' positions on; direct buffers, as cameras give them,
 * are not copied in Java.
 */
public final class Image {
    private static final int PLANES = 3;

    /** Formats of pictures, in the order of {@code tvmflow_image_format} in {@code tvmflow.h}. */
    public enum Format {
        RGBA8,
        BGRA8,
        RGB8,
        GREY8,
        NV12,
        NV21,
        YUV420,
        I420,
        YV12
    }

    private final int width;
    private final int height;
    private final ByteBuffer[] planes = new ByteBuffer[PLANES];
    private final int[] strides = new int[PLANES];
    private final int[] pixelStrides = new int[PLANES];
    private Object hardwareBuffer;
    private Format format;
    private int rotation;

    private Image(int width, int height) {
        this.width = width;
        this.height = height;
    }

    /** Pixels in one buffer: all formats, those with several planes where these follow each other. */
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
     * Android's {@code YUV_420_888}, as {@code android.media.Image} and CameraX's {@code ImageProxy}
     * have it: buffers of three planes, the strides of their rows, and those of chroma's pixels. A
     * network takes it that was compiled for any format with chroma at half the size (YUV420, NV12,
     * NV21, I420, YV12).
     */
    public static Image ofYuv420(
            ByteBuffer y,
            ByteBuffer u,
            ByteBuffer v,
            int width,
            int height,
            int yRowStride,
            int uvRowStride,
            int uvPixelStride) {
        Image image = of(y, u, width, height);
        image.planes[2] = direct(v);
        return image.format(Format.YUV420)
                .strides(yRowStride, uvRowStride, uvRowStride)
                .pixelStrides(1, uvPixelStride, uvPixelStride);
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

    /**
     * The picture's format, where it is not the one that the network was compiled for: BGRA8 for
     * RGBA8, a format with chroma at half the size for another one, or the other way round.
     */
    public Image format(Format wanted) {
        format = wanted;
        return this;
    }

    /** Bytes from one row to the next, of each plane; without it there are no gaps. */
    public Image strides(int... bytes) {
        set(strides, bytes);
        return this;
    }

    /** Bytes from one pixel of a row to the next, of each plane; without it there are no gaps. */
    public Image pixelStrides(int... bytes) {
        set(pixelStrides, bytes);
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
        long[] numbers = new long[4 + 4 * PLANES];
        numbers[0] = width;
        numbers[1] = height;
        numbers[2] = rotation;
        numbers[3] = format == null ? -1 : format.ordinal();
        for (int i = 0; i < PLANES; ++i) {
            numbers[4 + 4 * i] = strides[i];
            numbers[5 + 4 * i] = pixelStrides[i];
            if (planes[i] != null) {
                numbers[6 + 4 * i] = planes[i].position();
                numbers[7 + 4 * i] = planes[i].remaining();
                if (!planes[i].hasRemaining()) {
                    throw new IllegalArgumentException("A plane of the picture has no bytes.");
                }
            }
        }
        return Native.setImage(
                handle, index, numbers, planes[0], planes[1], planes[2], hardwareBuffer);
    }

    private static void set(int[] all, int[] bytes) {
        if (bytes.length < 1 || bytes.length > PLANES) {
            throw new IllegalArgumentException("A picture has one, two or three planes.");
        }
        for (int each : bytes) {
            if (each < 0) {
                throw new IllegalArgumentException("There are no strides of " + each + " bytes.");
            }
        }
        System.arraycopy(bytes, 0, all, 0, bytes.length);
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
