package ai.tvmflow.example

import ai.tvmflow.Model
import ai.tvmflow.ModelException
import ai.tvmflow.openModel
import android.app.Activity
import android.os.Bundle
import android.widget.ScrollView
import android.widget.TextView
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.util.Locale
import kotlin.concurrent.thread
import org.json.JSONObject

/** Checks the phone's driver with the model's self-test, then measures the model. */
class MainActivity : Activity() {
    private lateinit var view: TextView

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        view = TextView(this).apply {
            textSize = 16f
            setPadding(32, 96, 32, 32)
            setTextIsSelectable(true)
        }
        setContentView(ScrollView(this).apply { addView(view) })
        // Opening builds kernels the first time: seconds, and not on the thread that draws.
        thread(name = "model") { measure() }
    }

    private fun measure() {
        try {
            val begin = System.nanoTime()
            openModel(MODEL).use { model ->
                show("opened in ${milliseconds(System.nanoTime() - begin)}")
                show(describe(model))
                val test = model.selfTest()
                show("self-test $test")
                if (test.passed) show(latency(model))
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

    private fun describe(model: Model): String {
        val facts = JSONObject(model.describe())
        return "$model\n${facts.toString(2)}"
    }

    private fun milliseconds(nanoseconds: Long) =
        String.format(Locale.ROOT, "%.2f ms", nanoseconds / 1e6)

    private fun show(line: String) = runOnUiThread { view.append("$line\n\n") }

    private companion object {
        /** `libmobilenet.so` in src/main/jniLibs/arm64-v8a. */
        const val MODEL = "mobilenet"
        const val WARM_UP = 5
        const val RUNS = 50
    }
}
