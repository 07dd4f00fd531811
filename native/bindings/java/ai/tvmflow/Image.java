// SPDX-License-Identifier: Apache-2.0

package ai.tvmflow;

import java.nio.Buffer;
import java.nio.ByteBuffer;

/**
 * A picture for an input compiled with {@code --image-input}. {@link Model#setImage} reads the
 * pixels, starting at the buffers' positions; direct buffers, such as those of cameras, are not
 * copied in Java.
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

    /** Returns a picture in one buffer, in any format; several planes follow each other. */
    public static Image of(ByteBuffer pixels, int width, int height) {
        Image image = new Image(width, height);
        image.planes[0] = direct(pixels);
        return image;
    }

    /** Returns a picture of two planes, luma and pairs of chroma, in NV12 or NV21. */
    public static Image of(ByteBuffer luma, ByteBuffer chroma, int width, int height) {
        Image image = of(luma, width, height);
        image.planes[1] = direct(chroma);
        return image;
    }

    /**
     * Returns a picture in Android's {@code YUV_420_888}, the format of {@code
     * android.media.Image} and CameraX's {@code ImageProxy}: buffers of three planes, the strides
     * of their rows, and those of chroma's pixels. Networks compiled for any format with chroma at
     * half the size (YUV420, NV12, NV21, I420, YV12) accept it.
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
     * Returns a picture in an {@code android.hardware.HardwareBuffer}, which the device's driver
     * reads without a copy. It must not be closed or written until the run is done.
     */
    public static Image ofHardwareBuffer(Object hardwareBuffer, int width, int height) {
        Image image = new Image(width, height);
        image.hardwareBuffer = hardwareBuffer;
        return image;
    }

    /**
     * Sets the picture's format if it is not the one that the network was compiled for: BGRA8 may
     * replace RGBA8, a format with chroma at half the size may replace another, and the reverse.
     */
    public Image format(Format wanted) {
        format = wanted;
        return this;
    }

    /** Sets the bytes from one row to the next, by plane; by default there are no gaps. */
    public Image strides(int... bytes) {
        set(strides, bytes);
        return this;
    }

    /** Sets the bytes from one pixel to the next, by plane; by default there are no gaps. */
    public Image pixelStrides(int... bytes) {
        set(pixelStrides, bytes);
        return this;
    }

    /**
     * Sets the clockwise rotation that makes the picture upright: 0, 90, 180 or 270 degrees, as
     * from CameraX's {@code ImageInfo.getRotationDegrees}.
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
        // In older versions of Android only Buffer has the method.
        ((Buffer) copy).clear();
        return copy;
    }
}
