package ai.tvmflow.example

import ai.tvmflow.Model
import ai.tvmflow.ModelException
import ai.tvmflow.ModelThread
import ai.tvmflow.openModel
import ai.tvmflow.through
import android.app.Activity
import android.os.Bundle
import android.widget.ScrollView
import android.widget.TextView
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.util.Locale
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.cancel
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.count
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.flow.flowOn
import kotlinx.coroutines.launch
import org.json.JSONObject

/** Checks the phone's driver with the model's self-test, then measures the model. */
class MainActivity : Activity() {
    private lateinit var view: TextView

    // Opening builds kernels the first time: seconds, and not on the thread that draws.
    private val scope = CoroutineScope(ModelThread)

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        view = TextView(this).apply {
            textSize = 16f
            setPadding(32, 96, 32, 32)
            setTextIsSelectable(true)
        }
        setContentView(ScrollView(this).apply { addView(view) })
        scope.launch { measure() }
    }

    override fun onDestroy() {
        scope.cancel()
        super.onDestroy()
    }

    private suspend fun measure() {
        try {
            val begin = System.nanoTime()
            openModel(MODEL).use { model ->
                show("opened in ${milliseconds(System.nanoTime() - begin)}")
                show(describe(model))
                val test = model.selfTest()
                show("self-test $test")
                if (!test.passed) return
                show(latency(model))
                val results = camera(model).through(model) { frame -> setInput(0, frame) }.count()
                show("$results results of $FRAMES frames, $FRAME_MS ms each")
            }
        } catch (error: ModelException) {
            show("${error.status()}: ${error.message}")
        }
    }

    private fun latency(model: Model): String {
        model.inputs().forEachIndexed { index, tensor ->
            val zeros = ByteBuffer.allocateDirect(tensor.bytes).order(ByteOrder.nativeOrder())
            model.setInput(index, zeros)
        }
        repeat(WARM_UP) { model.run() }
        val times = LongArray(RUNS) {
            val begin = System.nanoTime()
            model.run()
            System.nanoTime() - begin
        }
        times.sort()
        return "median of $RUNS runs: ${milliseconds(times[RUNS / 2])}"
    }

    /** Frames as a camera gives them, however long a run takes. */
    private fun camera(model: Model): Flow<ByteBuffer> {
        val bytes = model.inputs()[0].bytes
        return flow {
            repeat(FRAMES) {
                emit(ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder()))
                delay(FRAME_MS)
            }
        }.flowOn(Dispatchers.Default)
    }

    private fun describe(model: Model): String {
        val facts = JSONObject(model.describe())
        return "$model\n${facts.toString(2)}"
    }

    private fun milliseconds(nanoseconds: Long) =
        String.format(Locale.ROOT, "%.2f ms", nanoseconds / 1e6)

    private fun show(line: String) = runOnUiThread { view.append("$line\n\n") }

    private companion object {
        /** `libmobilenet.so` of the AAR in app/libs. */
        const val MODEL = "mobilenet"
        const val WARM_UP = 5
        const val RUNS = 50
        const val FRAMES = 90
        const val FRAME_MS = 33L
    }
}
