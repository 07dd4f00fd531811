// The backend that was chosen at an earlier start, stored in the cache.
#include <stdlib.h>
#include <string.h>

#include "../core/device.h"
#include "../core/sha256_state.h"
#include "cache.h"
#include "model.h"
#include "open.h"
#include "weights.h"

// The content of the cache's entry.
static const uint8_t chosen_opencl[] = "opencl";
static const uint8_t chosen_cpu[] = "cpu";

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
  const char* const texts[] = {"tvmflow backend 1", d->name, d->driver, d->platform_name,
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
  if (!m->may_fall_back) return TVMFLOW_OK;
  uint8_t key[32];
  size_t bytes = 0;
  bool shipped;
  make_key(m, key);
  uint8_t* const found = tf_cache_load(&m->cache, key, &bytes, &shipped);
  const bool cpu = found && bytes == sizeof(chosen_cpu) && !memcmp(found, chosen_cpu, bytes);
  m->choice_cached = found != NULL;
  free(found);
  if (!cpu) return TVMFLOW_OK;
  return tf_fail(&m->message, TVMFLOW_ERROR_UNSUPPORTED,
                 "Device '%s' was slower than the CPU at an earlier start, or its results were "
                 "wrong. Remedy: empty the cache folder to try it again.",
                 m->device.name);
}

void tf_choice_store(tvmflow_model* m, bool cpu) {
  uint8_t key[32];
  make_key(m, key);
  tf_cache_store(&m->cache, key, cpu ? chosen_cpu : chosen_opencl,
                 cpu ? sizeof(chosen_cpu) : sizeof(chosen_opencl));
}
