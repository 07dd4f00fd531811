// SPDX-License-Identifier: Apache-2.0

package ai.tvmflow

import java.util.concurrent.Executors
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.asCoroutineDispatcher
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.conflate
import kotlinx.coroutines.flow.map
import kotlinx.coroutines.withContext

/** Where models run: one at a time, and never on a thread that other coroutines wait for. */
val ModelThread: CoroutineDispatcher =
    Executors.newSingleThreadExecutor { work ->
        Thread(work, "model").apply { isDaemon = true }
    }.asCoroutineDispatcher()

/**
 * Sets the inputs, runs the network and returns what is read of its outputs. Nothing of another call
 * comes in between; a coroutine that is cancelled meanwhile gets no result.
 */
suspend fun <Result> Model.infer(set: Model.() -> Unit, read: Model.() -> Result): Result =
    withContext(ModelThread) {
        set()
        run()
        read()
    }

/** [infer] with all outputs, of 32-bit floats, as the result. */
suspend fun Model.infer(set: Model.() -> Unit): List<FloatArray> =
    infer(set) { List(outputs().size) { index -> output(index) } }

/** [infer] with an array for each input. */
suspend fun Model.infer(vararg inputs: FloatArray): List<FloatArray> = infer {
    inputs.forEachIndexed { index, values -> setInput(index, values) }
}

/**
 * What is read of the outputs for frames of a camera, in order. While a run goes on only the newest
 * frame waits; older ones are left out, and the camera never waits.
 */
fun <Frame, Result> Flow<Frame>.through(
    model: Model,
    set: Model.(Frame) -> Unit,
    read: Model.() -> Result,
): Flow<Result> = conflate().map { frame -> model.infer({ set(frame) }, read) }

/** [through] with all outputs, of 32-bit floats, as the results. */
fun <Frame> Flow<Frame>.through(
    model: Model,
    set: Model.(Frame) -> Unit,
): Flow<List<FloatArray>> = conflate().map { frame -> model.infer { set(frame) } }
