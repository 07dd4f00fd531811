// SPDX-License-Identifier: Apache-2.0

package ai.tvmflow;

import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;

/**
 * Functions of {@code jni.c}, which every library contains; those of the library that was loaded
 * first are bound, and work with all libraries. Texts are UTF-8, because JNI's strings are not.
 */
final class Native {
    private Native() {}

    static void check(long handle, int status) {
        if (status != 0) {
            throw failure(handle);
        }
    }

    static ModelException failure(long handle) {
        return new ModelException(
                ModelException.Status.of(status(handle)), Words.inJava(text(message(handle))), null);
    }

    static byte[] utf8(Object text) {
        return text == null ? null : text.toString().getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] utf8) {
        return new String(utf8, StandardCharsets.UTF_8);
    }

    static native long open(
            byte[] library,
            byte[] cacheFolder,
            byte[] weights,
            byte[] opencl,
            byte[] drivers,
            long[] numbers,
            OutputStream log);

    static native void close(long handle);

    static native int status(long handle);

    static native byte[] message(long handle);

    static native byte[] describe(long handle);

    static native int count(long handle, boolean outputs);

    static native byte[] tensor(long handle, boolean output, int index, long[] numbers);

    static native int shapes(long handle);

    static native int shape(long handle);

    static native int chooseShape(long handle, int index);

    static native int setShape(long handle, int input, long[] extents);

    static native int setInput(
            long handle, int index, int dtype, ByteBuffer data, int offset, int bytes);

    static native int setImage(
            long handle,
            int index,
            long[] numbers,
            ByteBuffer first,
            ByteBuffer second,
            ByteBuffer third,
            Object hardwareBuffer);

    static native int imageInput(long handle, int index, long[] numbers);

    static native int imagePlace(long handle, int index, double[] place);

    static native int getOutput(
            long handle, int index, int dtype, ByteBuffer data, int offset, int bytes);

    static native int warmUp(long handle);

    static native int run(long handle);

    static native int start(long handle);

    static native int await(long handle);

    static native void cancel(long handle);

    static native int memory(long handle, long[] numbers);

    static native byte[] profile(long handle);

    static native byte[] testReport(long handle);

    static native int tune(long handle, int budgetMs);

    static native int tuneWait(long handle);

    static native double tuneProgress(long handle);

    static native byte[] tuneReport(long handle);

    static native int selfTest(
            long handle, int runs, int pauseMs, int budgetMs, int flags, double[] numbers);
}
