// SPDX-License-Identifier: Apache-2.0

package ai.tvmflow;

/** Pictures that an input compiled with {@code --image-input} accepts. */
public final class ImageInfo {
    static final int NUMBERS = 3;

    /** The format that the network was compiled for. */
    public final Image.Format format;

    /** Size of pictures in memory, before rotation; 0: any. */
    public final int width;

    public final int height;

    ImageInfo(long[] numbers) {
        format = Image.Format.values()[(int) numbers[0]];
        width = (int) numbers[1];
        height = (int) numbers[2];
    }

    @Override
    public String toString() {
        return format.name().toLowerCase(java.util.Locale.ROOT)
                + (width == 0 ? " of any size" : " of " + width + "x" + height);
    }
}
