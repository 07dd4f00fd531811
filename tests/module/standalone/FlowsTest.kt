import ai.tvmflow.Model
import ai.tvmflow.ModelException
import ai.tvmflow.ModelOptions
import ai.tvmflow.infer
import ai.tvmflow.through
import androidx.camera.core.ImageAnalysis
import androidx.camera.core.ImageInfo
import androidx.camera.core.ImageProxy
import java.nio.ByteBuffer
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.async
import kotlinx.coroutines.awaitAll
import kotlinx.coroutines.coroutineScope
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.flow.map
import kotlinx.coroutines.flow.take
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking

/** A frame of 4x2 pixels as semi-planar cameras have it; the first levels are those of luma. */
class Frame(first: Int, private val chromaStride: Int = 2) : ImageProxy {
    var closed = false
    private val luma = ByteBuffer.allocateDirect(9)
    private val pairs = ByteBuffer.allocateDirect(4)

    init {
        for (i in 0..3) luma.put(i, (first + i).toByte())
        for (i in 0..3) pairs.put(i, (40 + i).toByte())
    }

    private inner class Plane(val bytes: ByteBuffer, val row: Int, val pixel: Int) :
        ImageProxy.PlaneProxy {
        override fun getRowStride() = row
        override fun getPixelStride() = pixel
        override fun getBuffer() = bytes
    }

    override fun getWidth() = 4
    override fun getHeight() = 2
    override fun getImageInfo() = object : ImageInfo {
        override fun getRotationDegrees() = 90
    }
    override fun getPlanes(): Array<ImageProxy.PlaneProxy> {
        val u = pairs.duplicate().apply { limit(3) }
        val v = pairs.duplicate().apply { position(1) }
        return arrayOf(Plane(luma, 5, 1), Plane(u, 6, chromaStride), Plane(v, 6, chromaStride))
    }
    override fun close() {
        closed = true
    }
}

/** Frames of CameraX through the model, whose second input stays zeros. */
private suspend fun takesFrames(model: Model) = coroutineScope {
    model.setInput(1, FloatArray(6))
    val analysis = ImageAnalysis.Builder().build()
    val frames = List(3) { Frame(it) }
    val results = async(Dispatchers.Default) {
        analysis.through(model) { output(0).toList() }.take(1).toList()
    }
    while (!analysis.give(frames[0])) delay(1)
    check(results.await() == listOf(listOf(0f, 1f, 2f, 3f, 42f, 43f))) { "$results" }
    check(frames[0].closed && !analysis.give(frames[1]))

    // A frame that the model refuses ends the flow with the reason, and is closed.
    val wrong = Frame(0, chromaStride = 1)
    val failed = async(Dispatchers.Default) {
        runCatching { analysis.through(model) { output(0) }.toList() }.exceptionOrNull()
    }
    while (!analysis.give(wrong)) delay(1)
    check(failed.await() is ModelException && wrong.closed && !analysis.give(frames[2]))
}

/** Coroutines on a model that adds its two inputs of six elements. */
fun main(arguments: Array<String>) = runBlocking {
    fun all(value: Int) = FloatArray(6) { value.toFloat() }
    Model.open(arguments[0]).use { model ->
        check(model.infer(all(1), all(2)).single().all { it == 3f })

        // What several coroutines do does not mix.
        val sums = (1..100).map { number ->
            async(Dispatchers.Default) { model.infer(all(number), all(number)).single()[0] }
        }
        check(sums.awaitAll() == (1..100).map { 2f * it })

        // Frames that come faster than results are left out, but the last.
        var given = 0
        val frames = flow { repeat(500) { number -> emit(number); ++given } }
        val results = frames.through(model) { number ->
            Thread.sleep(2)
            setInput(0, all(number))
            setInput(1, all(1))
        }
        val found = results.map { it.single()[0] }.toList()
        check(given == 500 && found.last() == 500f && found.size < 400) { "$given $found" }
        check(found == found.sorted())

        val least = frames.through(model, { number -> setInput(0, all(number)) }) { output(0).min() }
        check(least.toList().last() == 500f)

        takesFrames(model)

        // What fails fails in the caller, and the model goes on.
        check(runCatching { model.infer(FloatArray(5)) }.exceptionOrNull() is IllegalArgumentException)
        check(model.infer(all(0), all(1)).single()[5] == 1f)
    }
    Model.open(arguments[0], ModelOptions().openclLibrary("integers")).use { model ->
        val set: Model.() -> Unit = {
            setInput(0, all(7))
            setInput(1, all(1))
        }
        check(model.infer(set) { intOutput(0) }.all { it == 8 })
    }
    println("passed")
}
