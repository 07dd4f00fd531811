import ai.tvmflow.Model
import ai.tvmflow.ModelOptions
import ai.tvmflow.infer
import ai.tvmflow.through
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.async
import kotlinx.coroutines.awaitAll
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.flow.map
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking

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
