// SPDX-License-Identifier: Apache-2.0

package ai.tvmflow

import androidx.camera.core.ImageAnalysis
import androidx.camera.core.ImageProxy
import kotlinx.coroutines.asExecutor
import kotlinx.coroutines.channels.awaitClose
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.callbackFlow
import kotlinx.coroutines.flow.conflate

/** A frame of CameraX, turned upright by the network's kernel; valid until the frame is closed. */
fun ImageProxy.toImage(): Image {
    val (y, u, v) = planes
    return Image.ofYuv420(
        y.buffer, u.buffer, v.buffer, width, height, y.rowStride, u.rowStride, u.pixelStride,
    ).rotation(imageInfo.rotationDegrees)
}

/**
 * What is read of the outputs for frames of a camera, in order; `input` takes pictures with chroma at
 * half the size (`--image-input NAME=yuv420`). Build the analysis with `STRATEGY_KEEP_ONLY_LATEST`:
 * while a run goes on, CameraX leaves out all frames but the newest.
 */
fun <Result> ImageAnalysis.through(
    model: Model,
    input: Int = 0,
    read: Model.() -> Result,
): Flow<Result> = callbackFlow {
    setAnalyzer(ModelThread.asExecutor()) { frame ->
        try {
            // The pixels are copied here, and the camera gets its frame back before the run.
            frame.use { model.setImage(input, it.toImage()) }
            model.run()
            trySend(model.read())
        } catch (error: RuntimeException) {
            close(error)
        }
    }
    awaitClose { clearAnalyzer() }
}.conflate()
