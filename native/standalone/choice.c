// The backend that was chosen at an earlier start, stored in the cache.
#include <stdlib.h>
#include <string.h>

#include "../core/device.h"
#include "../core/sha256_state.h"
#include "cache.h"
#include "model.h"
#include "open.h"
#include "weights.h"

// The cache's entry: these bytes, of which RUNS counts equal runs so far, then one for each
// alternative that is 1 where it is used.
enum { BACKEND, RECORDING, RUNS, USED };

// Makes the key: a hash of the library, the device with its driver, and the options.
static void make_key(const tvmflow_model* m, uint8_t key[32]) {
  Sha256State hash;
  Sha256Begin(&hash);
  for (unsigned backend = TVMFLOW_OPENCL; backend <= TVMFLOW_CPU; ++backend) {
    size_t bytes = 0;
    const tf_header* const plan = tf_library_plan((tvmflow_backend)backend, &bytes);
    Sha256Add(&hash, plan->checksum, sizeof(plan->checksum));
  }
  const tf_device* const d = &m->device;
  const char* const texts[] = {"tvmflow backend 2", d->name, d->driver, d->platform_name,
                               d->platform_version};
  for (unsigned i = 0; i < sizeof(texts) / sizeof(texts[0]); ++i)
    Sha256Add(&hash, texts[i], strlen(texts[i]) + 1);
  const uint8_t faster = (m->flags & TVMFLOW_CHOOSE_FASTER) != 0;
  Sha256Add(&hash, &faster, sizeof(faster));
  // Another table of faults may make the device usable, or faster.
  Sha256Add(&hash, &m->avoided, sizeof(m->avoided));
  Sha256Add(&hash, m->fault_options, strlen(m->fault_options));
  Sha256End(&hash, key);
}

tvmflow_status tf_choice_recall(tvmflow_model* m) {
  const uint32_t alternatives = tf_count(&m->plan, TF_ALTERNATIVES);
  m->used = calloc(alternatives + 1u, sizeof(bool));
  if (!m->used)
    return tf_fail(&m->message, TVMFLOW_ERROR_MEMORY, "No memory for %u alternatives.",
                   alternatives);
  if (m->backend == TVMFLOW_CPU || !(m->may_fall_back || alternatives)) return TVMFLOW_OK;
  uint8_t key[32];
  size_t bytes = 0;
  bool shipped;
  make_key(m, key);
  uint8_t* const found = tf_cache_load(&m->cache, key, &bytes, &shipped);
  m->choice_cached = found && bytes == USED + alternatives && found[BACKEND] <= TVMFLOW_CPU;
  const bool cpu = m->choice_cached && found[BACKEND] == TVMFLOW_CPU;
  if (m->choice_cached) {
    if (!found[RECORDING]) m->flags |= TVMFLOW_NO_COMMAND_BUFFER;
    m->equal_runs = found[RUNS];
    for (uint32_t i = 0; i < alternatives; ++i) m->used[i] = found[USED + i] == 1;
  }
  free(found);
  if (!cpu || !m->may_fall_back) return TVMFLOW_OK;
  return tf_fail(&m->message, TVMFLOW_ERROR_UNSUPPORTED,
                 "Device '%s' was slower than the CPU at an earlier start, or its results were "
                 "wrong. Remedy: empty the cache folder to try it again.",
                 m->device.name);
}

void tf_choice_store(tvmflow_model* m, bool cpu) {
  const uint32_t alternatives = tf_count(&m->plan, TF_ALTERNATIVES);
  uint8_t* const content = calloc(USED + alternatives, 1);
  uint8_t key[32];
  // Without memory for it, the next start tests again.
  if (!content) return;
  content[BACKEND] = cpu ? TVMFLOW_CPU : TVMFLOW_OPENCL;
  content[RECORDING] = !(m->flags & TVMFLOW_NO_COMMAND_BUFFER);
  content[RUNS] = (uint8_t)m->equal_runs;
  for (uint32_t i = 0; i < alternatives; ++i) content[USED + i] = m->used[i];
  make_key(m, key);
  tf_cache_store(&m->cache, key, content, USED + alternatives);
  free(content);
}
