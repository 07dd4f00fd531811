package ai.tvmflow

import android.content.Context

/**
 * Opens a library of the application, with its built kernels kept where the system removes them
 * when the application or the system is updated. Not for the main thread.
 *
 * `context.openModel("mobilenet").use { model -> ... }` opens `libmobilenet.so`.
 */
fun Context.openModel(library: String, configure: ModelOptions.() -> Unit = {}): Model =
    Model.open(library, ModelOptions().cacheFolder(codeCacheDir).apply(configure))
