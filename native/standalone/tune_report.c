// The result of a tuning, as JSON.
#include <math.h>
#include <stdlib.h>

#include "../core/text.h"
#include "alternatives.h"
#include "open.h"
#include "tune.h"

static const char* end_of(tf_tuning_end end) {
  static const char* const names[] = {"tuned", "budget", "hot", "stopped"};
  return names[end];
}

static void append_time(const tvmflow_model* m, const tf_tuning* t, uint32_t i, char* json,
                        size_t bytes) {
  static const char* const standings[] = {"untried", "used", "slower", "wrong"};
  tf_append(
      json, bytes,
      "{\"alternative\":%u,\"instead_of\":%d,\"was_us\":%.6g,\"us\":%.6g,\"standing\":\"%s\"}", i,
      t->base[i] == TF_NONE ? -1 : (int)t->base[i], t->own[i], t->other[i],
      standings[m->standing[i]]);
}

char* tf_tune_report(const tvmflow_model* m, const tf_tuning* t) {
  const uint32_t all = tf_count(&m->plan, TF_ALTERNATIVES);
  const size_t bytes = 4096 + (size_t)all * 160;
  char* const json = calloc(bytes, 1);
  if (!json) return NULL;
  uint32_t untried = 0;
  for (uint32_t i = 0; i < all; ++i)
    untried += m->plan.alternatives[i].kind == TF_CHOICE && m->standing[i] == TF_UNTRIED;
  tf_append(json, bytes, "{\"library\":\"");
  for (uint32_t i = 0; i < 16; ++i) tf_append(json, bytes, "%02x", m->plan.header->checksum[i]);
  tf_append(json, bytes, "\",\"device\":{");
  tf_describe_text(json, bytes, "name", m->device.name);
  tf_describe_text(json, bytes, "platform", m->device.platform_name);
  tf_describe_text(json, bytes, "version", m->device.platform_version);
  tf_describe_text(json, bytes, "driver", m->device.driver);
  tf_append(json, bytes, "\"type\":\"%s\"},\"end\":\"%s\",\"ms\":%.6g,", tf_device_type(&m->device),
            end_of(t->end), (double)t->spent * 1e-6);
  tf_append(json, bytes, "\"choices\":%u,\"used\":%u,\"untried\":%u,",
            tf_alternatives_count(m, TF_CHOICE, false), tf_alternatives_count(m, TF_CHOICE, true),
            untried);
  tf_append(json, bytes, "\"network_us\":[%.6g,%.6g],\"times\":[", t->network[0], t->network[1]);
  bool first = true;
  for (uint32_t i = 0; i < all; ++i) {
    if (m->plan.alternatives[i].kind != TF_CHOICE) continue;
    if (!(t->other[i] > 0) && m->standing[i] != TF_WRONG) continue;
    if (!first) tf_append(json, bytes, ",");
    append_time(m, t, i, json, bytes);
    first = false;
  }
  tf_append(json, bytes, "]}");
  return json;
}
