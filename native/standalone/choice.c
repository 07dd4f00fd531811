// The backend that was chosen at an earlier start, stored in the cache.
#include <stdlib.h>
#include <string.h>

#include "../core/device.h"
#include "../core/sha256_state.h"
#include "cache.h"
#include "model.h"
#include "open.h"
#include "weights.h"

// The cache's entry: these bytes, of which TESTED is 1 where the backend was tested and RUNS counts
// equal runs so far, then the standing of each alternative.
enum { BACKEND, TESTED, RECORDING, RUNS, STANDING };

// Adds a section of a plan that may not have been checked.
static void add_section(Sha256State* hash, const tf_header* plan, size_t bytes,
                        tf_section_name section, size_t record) {
  if (bytes < sizeof(*plan)) return;
  const uint64_t begin = plan->section[section].offset;
  const uint64_t size = (uint64_t)plan->section[section].count * record;
  if (begin + size <= bytes) Sha256Add(hash, (const uint8_t*)plan + begin, (size_t)size);
}

// Makes the key: a hash of the kernels, the device with its driver, and the options.  Weights are
// left out: an update of them keeps the choice.
static void make_key(const tvmflow_model* m, uint8_t key[32]) {
  Sha256State hash;
  Sha256Begin(&hash);
  for (unsigned backend = TVMFLOW_OPENCL; backend <= TVMFLOW_CPU; ++backend) {
    size_t bytes = 0;
    const tf_header* const plan = tf_library_plan((tvmflow_backend)backend, &bytes);
    add_section(&hash, plan, bytes, TF_DIGESTS, sizeof(tf_digest));
    add_section(&hash, plan, bytes, TF_LAUNCHES, sizeof(tf_launch));
    add_section(&hash, plan, bytes, TF_ALTERNATIVES, sizeof(tf_alternative));
  }
  const tf_device* const d = &m->device;
  const char* const texts[] = {"tvmflow backend 3", d->name, d->driver, d->platform_name,
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
  m->standing = calloc(alternatives + 1u, 1);
  if (!m->standing)
    return tf_fail(&m->message, TVMFLOW_ERROR_MEMORY, "No memory for %u alternatives.",
                   alternatives);
  if (m->backend == TVMFLOW_CPU || !(m->may_fall_back || alternatives)) return TVMFLOW_OK;
  uint8_t key[32];
  size_t bytes = 0;
  bool shipped;
  make_key(m, key);
  uint8_t* const found = tf_cache_load(&m->cache, key, &bytes, &shipped);
  const bool whole = found && bytes == STANDING + alternatives && found[BACKEND] <= TVMFLOW_CPU;
  const bool cpu = whole && found[BACKEND] == TVMFLOW_CPU;
  if (whole) {
    m->tested = found[TESTED] != 0;
    if (!found[RECORDING]) m->flags |= TVMFLOW_NO_COMMAND_BUFFER;
    m->equal_runs = found[RUNS];
    for (uint32_t i = 0; i < alternatives; ++i) m->standing[i] = found[STANDING + i];
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
  uint8_t* const content = calloc(STANDING + alternatives, 1);
  uint8_t key[32];
  // Without memory for it, the next start tests again.
  if (!content) return;
  content[BACKEND] = cpu ? TVMFLOW_CPU : TVMFLOW_OPENCL;
  content[TESTED] = m->tested;
  content[RECORDING] = !(m->flags & TVMFLOW_NO_COMMAND_BUFFER);
  content[RUNS] = (uint8_t)m->equal_runs;
  for (uint32_t i = 0; i < alternatives; ++i) content[STANDING + i] = m->standing[i];
  make_key(m, key);
  tf_cache_store(&m->cache, key, content, STANDING + alternatives);
  free(content);
}
