package ai.tvmflow.example

import ai.tvmflow.Model
import ai.tvmflow.ModelException
import ai.tvmflow.ModelThread
import ai.tvmflow.openModel
import ai.tvmflow.through
import android.Manifest
import android.content.pm.PackageManager
import android.os.Bundle
import android.widget.LinearLayout
import android.widget.ScrollView
import android.widget.TextView
import androidx.activity.ComponentActivity
import androidx.activity.result.contract.ActivityResultContracts
import androidx.camera.core.CameraSelector
import androidx.camera.core.ImageAnalysis
import androidx.camera.lifecycle.ProcessCameraProvider
import androidx.core.content.ContextCompat
import java.util.Locale
import kotlinx.coroutines.CompletableDeferred
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.cancel
import kotlinx.coroutines.launch
import org.json.JSONObject

/** Checks the phone's driver with the model's self-test, then classifies what the camera sees. */
class MainActivity : ComponentActivity() {
    private lateinit var view: TextView
    private lateinit var latest: TextView

    // Opening builds kernels the first time: seconds, and not on the thread that draws.
    private val scope = CoroutineScope(ModelThread)
    private val frames = CompletableDeferred<ImageAnalysis>()
    private val permission =
        registerForActivityResult(ActivityResultContracts.RequestPermission()) { granted ->
            if (granted) startCamera() else latest.text = "The camera may not be used."
        }

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        view = TextView(this).apply { setTextIsSelectable(true) }
        latest = TextView(this).apply { textSize = 24f }
        val column = LinearLayout(this).apply {
            orientation = LinearLayout.VERTICAL
            setPadding(32, 96, 32, 32)
            addView(latest)
            addView(view)
        }
        setContentView(ScrollView(this).apply { addView(column) })
        scope.launch { classify() }
        if (checkSelfPermission(Manifest.permission.CAMERA) == PackageManager.PERMISSION_GRANTED) {
            startCamera()
        } else {
            permission.launch(Manifest.permission.CAMERA)
        }
    }

    override fun onDestroy() {
        scope.cancel()
        super.onDestroy()
    }

    /** Frames of the back camera, of which CameraX gives only the newest to a model that is busy. */
    private fun startCamera() {
        val providers = ProcessCameraProvider.getInstance(this)
        val bind = Runnable {
            val analysis = ImageAnalysis.Builder()
                .setBackpressureStrategy(ImageAnalysis.STRATEGY_KEEP_ONLY_LATEST)
                .build()
            providers.get().bindToLifecycle(this, CameraSelector.DEFAULT_BACK_CAMERA, analysis)
            frames.complete(analysis)
        }
        providers.addListener(bind, ContextCompat.getMainExecutor(this))
    }

    private suspend fun classify() {
        try {
            val begin = System.nanoTime()
            openModel(MODEL).use { model ->
                show("opened in ${milliseconds(System.nanoTime() - begin)}")
                show("$model\npictures: ${model.imageInput(0)}")
                val test = model.selfTest()
                show("self-test $test")
                if (!test.passed) return
                show(latency(model))
                show("${model.memory()}\n${JSONObject(model.describe()).toString(2)}")
                val results = frames.await().through(model) { intOutput(1)[0] to output(0)[0] }
                results.collect { (index, score) ->
                    runOnUiThread { latest.text = "class $index: ${percent(score)}" }
                }
            }
        } catch (error: ModelException) {
            show("${error.status()}: ${error.message}")
        }
    }

    /** The time of runs of the self-test's input. */
    private fun latency(model: Model): String {
        repeat(WARM_UP) { model.run() }
        val times = LongArray(RUNS) {
            val begin = System.nanoTime()
            model.run()
            System.nanoTime() - begin
        }
        times.sort()
        return "median of $RUNS runs: ${milliseconds(times[RUNS / 2])}"
    }

    private fun milliseconds(nanoseconds: Long) =
        String.format(Locale.ROOT, "%.2f ms", nanoseconds / 1e6)

    private fun percent(part: Float) = String.format(Locale.ROOT, "%.0f %%", 100 * part)

    private fun show(line: String) = runOnUiThread { view.append("$line\n\n") }

    private companion object {
        /** `libmobilenet.so` of the AAR in app/libs. */
        const val MODEL = "mobilenet"
        const val WARM_UP = 5
        const val RUNS = 50
    }
}
