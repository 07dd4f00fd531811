// SPDX-License-Identifier: Apache-2.0

package ai.tvmflow

import android.content.Context
import java.io.File
import java.io.FileNotFoundException

/**
 * Opens a library of the application, with its built kernels kept where the system removes them
 * when the application or the system is updated. Not for the main thread.
 *
 * `context.openModel("mobilenet").use { model -> ... }` opens `libmobilenet.so`.
 */
fun Context.openModel(library: String, configure: ModelOptions.() -> Unit = {}): Model =
    Model.open(
        library,
        ModelOptions().cacheFolder(codeCacheDir).weights(weightsOf(library)).apply(configure),
    )

/** The file of a library's weights, copied from the assets; `null` if they are in the library. */
private fun Context.weightsOf(library: String): File? {
    val name = "lib$library.so.weights"
    // Emptied at each update of the application, like the cache of its code.
    val file = File(codeCacheDir, name)
    if (file.exists()) return file
    return try {
        val part = File(codeCacheDir, "$name.part")
        assets.open("tvmflow/$name").use { from -> part.outputStream().use(from::copyTo) }
        part.renameTo(file)
        file
    } catch (missing: FileNotFoundException) {
        null
    }
}
