#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../core/threads.h"
#include "alternatives.h"
#include "entry.h"
#include "open.h"
#include "run.h"
#include "trial.h"
#include "tune.h"

enum {
  MOST_SAMPLES = 7,   // of each alternative
  FEW_SAMPLES = 3,    // if the budget is small
  MOST_TOGETHER = 8,  // alternatives of the same launches that are compared at once
  MOST_RETRIES = 20,  // of a run that the application's runs disturbed
  QUIET_NS = 1000000  // sleep while the application runs
};

// Gain that an alternative must have at least: samples of equal kernels differ by 1 to 2 % on an
// idle machine.
static const double least_gain = 0.03;
// Share of the budget that compilers may take before what is ready is timed.
static const double compiler_share = 0.6;

// Launches of the shape that have untried alternatives.
typedef struct slot {
  uint32_t first;
  uint32_t count;
  double time;  // nanoseconds in a run
  uint32_t candidates[MOST_TOGETHER];
  uint32_t candidate_count;
  // Nanoseconds: of what is in use, then of each candidate.
  double samples[MOST_TOGETHER + 1][MOST_SAMPLES];
} slot;

// One comparison of the candidates of several slots.
typedef struct batch {
  slot* slots;
  uint32_t count;
  uint32_t* slot_of;  // for each launch of the plan: its slot; TF_NONE
  uint8_t* standing;  // of the alternatives at the beginning
  uint32_t samples;
} batch;

static const tf_alternative* get(const tvmflow_model* m, uint32_t i) {
  return &m->plan.alternatives[i];
}

static uint32_t count_of(const tvmflow_model* m) { return tf_count(&m->plan, TF_ALTERNATIVES); }

static bool is_stopped(const tf_tuning* t) { return t->stopped && atomic_load(t->stopped); }

static bool has_spent(const tf_tuning* t, double share) {
  return (double)t->spent >= share * (double)t->budget_ms * 1e6;
}

// Waits until the application runs nothing.
static void wait_for_quiet(const tf_tuning* t) {
  const struct timespec pause = {0, QUIET_NS};
  while (t->application && atomic_load(&t->application->stop.running) && !is_stopped(t))
    (void)nanosleep(&pause, NULL);
}

static uint32_t runs_of(const tf_tuning* t) {
  return t->application ? atomic_load(&t->application->runs) : 0;
}

// Runs the network, and adds the times of each slot to its sample of a candidate, or to its time.
static tvmflow_status measure(tvmflow_model* m, tf_tuning* t, batch* b, uint32_t candidate,
                              uint32_t sample) {
  const tvmflow_kernel* kernels = NULL;
  uint32_t count = 0, runs = 0;
  tvmflow_status status = TVMFLOW_OK;
  for (unsigned retry = 0; !status && retry < MOST_RETRIES; ++retry) {
    wait_for_quiet(t);
    runs = runs_of(t);
    const uint64_t begin = tf_nanoseconds();
    status = tf_do_profile(m, &kernels, &count);
    t->spent += tf_nanoseconds() - begin;
    if (runs_of(t) == runs) break;
  }
  for (uint32_t i = 0; !status && i < count; ++i) {
    const uint32_t number = b->slot_of[m->launch_of[i]];
    if (number == TF_NONE) continue;
    slot* const s = &b->slots[number];
    double* const to = sample == TF_NONE ? &s->time : &s->samples[candidate][sample];
    if (sample == TF_NONE || candidate <= s->candidate_count)
      *to += (double)(kernels[i].end_ns - kernels[i].start_ns);
  }
  return status;
}

static int compare_numbers(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

// Returns the median, and the distance of the quartiles as a share of it.
static double median(double* samples, uint32_t count, double* spread) {
  qsort(samples, count, sizeof(*samples), compare_numbers);
  const double middle = samples[count / 2];
  *spread = middle > 0 ? (samples[count - 1 - count / 4] - samples[count / 4]) / middle : 0;
  return middle;
}

// Returns whether the launches of an alternative are part of the order as it is.
static bool is_visible(const tvmflow_model* m, const tf_alternative* a) {
  const tf_shape shape = tf_launches(m);
  uint32_t i = shape.first_launch;
  while (i < a->first) {
    const tf_part part = tf_part_at(m, i);
    i += part.count;
  }
  // A wider one that is in use hides those of the same first launch.
  return i == a->first && tf_part_at(m, i).count <= a->count;
}

static bool is_open(const tvmflow_model* m, uint32_t i, uint32_t calls) {
  const tf_shape shape = tf_launches(m);
  const tf_alternative* const a = get(m, i);
  return a->kind == TF_CHOICE && a->calls == calls && m->standing[i] == TF_UNTRIED &&
         a->first >= shape.first_launch && a->first < shape.first_launch + shape.launches &&
         is_visible(m, a);
}

// Returns the fewest calls that an untried alternative replaces; 0: none is left.
static uint32_t next_width(const tvmflow_model* m) {
  uint32_t found = 0;
  for (uint32_t i = 0; i < count_of(m); ++i) {
    const uint32_t calls = get(m, i)->calls;
    if ((!found || calls < found) && is_open(m, i, calls)) found = calls;
  }
  return found;
}

// Lists the slots of a width.
static void list_slots(const tvmflow_model* m, batch* b, uint32_t calls) {
  b->count = 0;
  for (uint32_t i = 0; i < count_of(m); ++i) {
    if (!is_open(m, i, calls)) continue;
    const tf_alternative* const a = get(m, i);
    slot* s = b->count ? &b->slots[b->count - 1] : NULL;
    if (!s || s->first != a->first || s->count != a->count) {
      // Of two that overlap, one is left for later.
      if (s && a->first < s->first + s->count) continue;
      s = &b->slots[b->count++];
      *s = (slot){.first = a->first, .count = a->count};
    }
    if (s->candidate_count == MOST_TOGETHER) continue;
    s->candidates[s->candidate_count++] = i;
  }
}

// Sets which slot each launch of the plan belongs to.
static void map_launches(const tvmflow_model* m, batch* b) {
  const uint32_t launches = tf_count(&m->plan, TF_LAUNCHES);
  for (uint32_t i = 0; i < launches; ++i) b->slot_of[i] = TF_NONE;
  for (uint32_t n = 0; n < b->count; ++n) {
    const uint32_t begin = b->slots[n].first, end = begin + b->slots[n].count;
    for (uint32_t i = begin; i < end; ++i) b->slot_of[i] = n;
    for (uint32_t i = tf_alternatives_from(m, begin); i < count_of(m) && get(m, i)->first < end;
         ++i)
      if (get(m, i)->first + get(m, i)->count <= end)
        for (uint32_t j = 0; j < get(m, i)->other_count; ++j)
          b->slot_of[get(m, i)->other_first + j] = n;
  }
}

static int compare_slots(const void* a, const void* b) {
  const slot *const x = a, *const y = b;
  return (x->time < y->time) - (x->time > y->time);
}

static int compare_places(const void* a, const void* b) {
  const slot *const x = a, *const y = b;
  return (x->first > y->first) - (x->first < y->first);
}

// Makes the candidates of the slots that take the longest, as far as the budget goes; the other
// slots are left out.  Those that cannot be made are rejected.
static void prepare(tvmflow_model* m, tf_tuning* t, batch* b) {
  uint32_t kept = 0;
  qsort(b->slots, b->count, sizeof(*b->slots), compare_slots);
  for (; kept < b->count && !is_stopped(t); ++kept) {
    if (kept && has_spent(t, compiler_share)) break;
    slot* const s = &b->slots[kept];
    const uint64_t begin = tf_nanoseconds();
    uint32_t made = 0;
    for (uint32_t j = 0; j < s->candidate_count; ++j) {
      if (tf_alternative_prepare(m, s->candidates[j]))
        tf_alternative_reject(m, s->candidates[j], TF_WRONG);
      else
        s->candidates[made++] = s->candidates[j];
    }
    s->candidate_count = made;
    t->spent += tf_nanoseconds() - begin;
  }
  b->count = kept;
  qsort(b->slots, b->count, sizeof(*b->slots), compare_places);
  map_launches(m, b);
}

// Runs a slot's candidate in place of what is in use, and rejects it if its results are wrong.
static tvmflow_status check(tvmflow_model* m, const slot* s, uint32_t candidate) {
  const tf_alternative* const a = get(m, candidate);
  double used = INFINITY;
  tvmflow_status status = tf_enqueue_launches(m, a->other_first, a->other_count);
  if (!status) status = tf_drain(m);
  if (!status) status = tf_compare_tensors(m, s->first, s->count, &used);
  if (status || used <= 1) return status;
  tf_alternative_reject(m, candidate, TF_WRONG);
  return tf_run_range(m, s->first, s->count);
}

// Runs the network with one candidate of each slot after the other, and compares their tensors.
static tvmflow_status check_all(tvmflow_model* m, tf_tuning* t, const batch* b) {
  const tf_shape shape = tf_launches(m);
  tvmflow_status status = TVMFLOW_OK;
  const uint64_t begin = tf_nanoseconds();
  for (uint32_t j = 0; !status && j < MOST_TOGETHER; ++j) {
    bool any = false;
    for (uint32_t n = 0; n < b->count; ++n) any |= j < b->slots[n].candidate_count;
    if (!any) break;
    uint32_t next = 0;
    for (uint32_t i = shape.first_launch;
         !status && !is_stopped(t) && i < shape.first_launch + shape.launches;) {
      const slot* const s = next < b->count && b->slots[next].first == i ? &b->slots[next] : NULL;
      next += s != NULL;
      wait_for_quiet(t);
      const uint32_t count = s ? s->count : tf_part_at(m, i).count;
      if (s && j < s->candidate_count)
        status = check(m, s, s->candidates[j]);
      else
        status = tf_run_range(m, i, count);
      i += count;
    }
  }
  t->spent += tf_nanoseconds() - begin;
  return status;
}

// Leaves out candidates that were rejected.
static void remove_rejected(const tvmflow_model* m, batch* b) {
  for (uint32_t n = 0; n < b->count; ++n) {
    slot* const s = &b->slots[n];
    uint32_t left = 0;
    for (uint32_t j = 0; j < s->candidate_count; ++j)
      if (m->standing[s->candidates[j]] == TF_UNTRIED) s->candidates[left++] = s->candidates[j];
    s->candidate_count = left;
  }
}

// Uses the candidates of a number, counted from 1, in all slots that have it; 0: as before.
static void arrange(tvmflow_model* m, const batch* b, uint32_t number) {
  memcpy(m->standing, b->standing, count_of(m));
  for (uint32_t n = 0; n < b->count; ++n) {
    const slot* const s = &b->slots[n];
    if (!number || number > s->candidate_count) continue;
    tf_alternative_select(m, s->candidates[number - 1]);
  }
  tf_order(m);
}

// Runs the network with each number of candidates in turn, as often as the budget allows.
static tvmflow_status sample_all(tvmflow_model* m, tf_tuning* t, batch* b) {
  uint32_t numbers = 0;
  for (uint32_t n = 0; n < b->count; ++n)
    if (b->slots[n].candidate_count > numbers) numbers = b->slots[n].candidate_count;
  memcpy(b->standing, m->standing, count_of(m));
  tvmflow_status status = TVMFLOW_OK;
  for (b->samples = 0; !status && b->samples < MOST_SAMPLES && !is_stopped(t); ++b->samples) {
    if (b->samples >= FEW_SAMPLES && has_spent(t, 1)) break;
    for (uint32_t j = 0; !status && j <= numbers; ++j) {
      arrange(m, b, j);
      status = measure(m, t, b, j, b->samples);
    }
  }
  arrange(m, b, 0);
  return status;
}

// Uses the fastest candidate of each slot, if it is faster than what was in use by more than noise.
static tvmflow_status decide(tvmflow_model* m, tf_tuning* t, batch* b) {
  tvmflow_status status = TVMFLOW_OK;
  for (uint32_t n = 0; !status && n < b->count; ++n) {
    slot* const s = &b->slots[n];
    double noise, spread;
    const double own = median(s->samples[0], b->samples, &noise);
    double least = own * (1 - (noise > least_gain ? noise : least_gain));
    uint32_t best = TF_NONE;
    const tf_part before = tf_part_at(m, s->first);
    for (uint32_t j = 0; j < s->candidate_count; ++j) {
      const uint32_t i = s->candidates[j];
      const double time = median(s->samples[j + 1], b->samples, &spread);
      t->own[i] = own * 1e-3;
      t->base[i] = before.count == s->count ? before.alternative : TF_NONE;
      t->other[i] = time * 1e-3;
      tf_alternative_reject(m, i, TF_SLOWER);
      if (time >= least) continue;
      least = time;
      best = i;
    }
    if (best == TF_NONE) continue;
    status = tf_alternative_use(m, best);
    const bool replaced = before.alternative != TF_NONE && before.count == s->count;
    if (replaced && get(m, before.alternative)->kind == TF_CHOICE)
      m->standing[before.alternative] = TF_SLOWER;
  }
  return status;
}

// Compares the untried alternatives that replace so many calls.
static tvmflow_status tune_width(tvmflow_model* m, tf_tuning* t, batch* b, uint32_t calls) {
  list_slots(m, b, calls);
  map_launches(m, b);
  tvmflow_status status = measure(m, t, b, 0, TF_NONE);
  if (status) return status;
  prepare(m, t, b);
  if (!is_stopped(t)) status = check_all(m, t, b);
  remove_rejected(m, b);
  if (!status && !is_stopped(t)) status = sample_all(m, t, b);
  return status || is_stopped(t) ? status : decide(m, t, b);
}

// Swaps the standings before the tuning with those that it found.
static void swap(tvmflow_model* m, tf_tuning* t) {
  for (uint32_t i = 0; i < count_of(m); ++i) {
    const uint8_t standing = m->standing[i];
    m->standing[i] = t->before[i];
    t->before[i] = standing;
  }
  tf_order(m);
}

// Compares runs of the network as it was with runs as chosen, in turn, and takes everything back
// unless those are faster.
static tvmflow_status confirm(tvmflow_model* m, tf_tuning* t) {
  double samples[2][MOST_SAMPLES], spread;
  tvmflow_status status = TVMFLOW_OK;
  for (uint32_t s = 0; !status && s < MOST_SAMPLES; ++s)
    for (uint32_t j = 0; !status && j < 2; ++j) {
      swap(m, t);
      wait_for_quiet(t);
      const uint64_t begin = tf_nanoseconds();
      status = tf_do_run(m);
      const uint64_t taken = tf_nanoseconds() - begin;
      samples[j][s] = (double)taken;
      t->spent += taken;
    }
  if (status) return status;
  for (unsigned j = 0; j < 2; ++j) t->network[j] = median(samples[j], MOST_SAMPLES, &spread) * 1e-3;
  if (t->network[1] < t->network[0]) return TVMFLOW_OK;
  for (uint32_t i = 0; i < count_of(m); ++i) {
    if (t->before[i] == TF_USED && m->standing[i] != TF_WRONG)
      m->standing[i] = TF_USED;
    else if (m->standing[i] == TF_USED)
      m->standing[i] = TF_SLOWER;
  }
  tf_order(m);
  return TVMFLOW_OK;
}

static tvmflow_status tune_all(tvmflow_model* m, tf_tuning* t, batch* b) {
  tvmflow_status status = tf_set_test_inputs(m);
  if (!status) status = tf_do_warm_up(m);
  // Single calls come first, and wider parts are compared with the best of those.
  for (uint32_t calls = next_width(m); !status && calls; calls = next_width(m)) {
    if (tf_is_hot())
      t->end = TF_TOO_HOT;
    else if (is_stopped(t))
      t->end = TF_TUNING_STOPPED;
    else if (has_spent(t, 1))
      t->end = TF_BUDGET_SPENT;
    if (t->end) return TVMFLOW_OK;
    status = tune_width(m, t, b, calls);
    if (!status && t->progress) {
      uint32_t untried = 0, all = 0;
      for (uint32_t i = 0; i < count_of(m); ++i) {
        all += get(m, i)->kind == TF_CHOICE;
        untried += get(m, i)->kind == TF_CHOICE && m->standing[i] == TF_UNTRIED;
      }
      t->progress(t->user, (double)(all - untried) / (all + 1));
    }
  }
  return status;
}

tvmflow_status tf_tune(tvmflow_model* m, tf_tuning* t) {
  const uint32_t all = count_of(m);
  batch b = {.slots = calloc(all + 1u, sizeof(slot)),
             .slot_of = calloc(tf_count(&m->plan, TF_LAUNCHES) + 1u, sizeof(uint32_t)),
             .standing = calloc(all + 1u, 1)};
  t->own = calloc(all + 1u, sizeof(double));
  t->other = calloc(all + 1u, sizeof(double));
  t->base = calloc(all + 1u, sizeof(uint32_t));
  t->before = calloc(all + 1u, 1);
  tvmflow_status status = TVMFLOW_OK;
  if (!b.slots || !b.slot_of || !b.standing || !t->own || !t->other || !t->base || !t->before)
    status = tf_fail(&m->message, TVMFLOW_ERROR_MEMORY, "Tuning: no memory for %u times.", all);
  bool changed = false;
  if (!status) {
    memcpy(t->before, m->standing, all);
    status = tune_all(m, t, &b);
    for (uint32_t i = 0; i < all; ++i)
      changed |= (m->standing[i] == TF_USED) != (t->before[i] == TF_USED);
  }
  if (!status && changed && !is_stopped(t)) status = confirm(m, t);
  if (!status && t->progress) t->progress(t->user, 1);
  free(b.slots);
  free(b.slot_of);
  free(b.standing);
  return status;
}

void tf_tuning_free(tf_tuning* t) {
  free(t->own);
  free(t->other);
  free(t->base);
  free(t->before);
}
