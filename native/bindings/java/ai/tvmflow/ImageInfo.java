// SPDX-License-Identifier: Apache-2.0

package ai.tvmflow;

/** What pictures an input takes that was compiled with {@code --image-input}. */
public final class ImageInfo {
    static final int NUMBERS = 3;

    /** The format that the network was compiled for. */
    public final Image.Format format;

    /** Of pictures in memory, before they are turned; 0: any. */
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
