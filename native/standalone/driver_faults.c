#include "driver_faults.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "json_reader.h"
#include "open.h"

// Numbers of a version that are compared.
enum { MOST_NUMBERS = 8 };

typedef struct version {
  unsigned count;
  uint32_t numbers[MOST_NUMBERS];
} version;

// An entry of a table.
typedef struct entry {
  char id[64];
  char fault[256];
  char report[256];
  char options[128];
  uint32_t avoided;
  bool matches;
} entry;

// Names of the bits of `tf_avoided`: what is avoided, and then what is used instead.
static const char* const names[] = {
    "opencl",        "recording",         "binaries",     "priority",
    "shared_memory", "image_from_buffer", "dot_products", "safe_kernels",
};
enum { AVOIDED = 7, NAMES = 8 };

// Reads the numbers at the start of the text, separated by one of ".@p-", such as 38.1.0 in
// "38.01.00" and 25.3.6908880 in "25.3@6908880".  Returns the rest of the text.
static const char* read_version(const char* text, version* v) {
  v->count = 0;
  while (isdigit((unsigned char)*text) && v->count < MOST_NUMBERS) {
    uint32_t number = 0;
    for (; isdigit((unsigned char)*text); ++text)
      number = number < 100000000 ? number * 10 + (uint32_t)(*text - '0') : 1000000000;
    v->numbers[v->count++] = number;
    if (*text && strchr(".@p-", *text) && isdigit((unsigned char)text[1])) ++text;
  }
  return text;
}

// Compares as many numbers as the bound has; missing ones are zero.
static int compare(const version* v, const version* bound) {
  for (unsigned i = 0; i < bound->count; ++i) {
    const uint32_t number = i < v->count ? v->numbers[i] : 0;
    if (number != bound->numbers[i]) return number < bound->numbers[i] ? -1 : 1;
  }
  return 0;
}

// Returns whether a part of the text is the pattern, which is not empty and in which '?' is any
// character.  A number at the pattern's end is a whole number in the text: "Mali-G72" is not in
// "Mali-G720".
static bool contains(const char* text, const char* pattern) {
  for (; *text; ++text) {
    size_t i = 0;
    while (pattern[i] && text[i] &&
           (pattern[i] == '?' ||
            tolower((unsigned char)pattern[i]) == tolower((unsigned char)text[i])))
      ++i;
    if (!pattern[i] && (!isdigit((unsigned char)text[i - 1]) || !isdigit((unsigned char)text[i])))
      return true;
  }
  return false;
}

static bool read_bound(tf_json* j, version* bound) {
  char text[64];
  if (!tf_json_string(j, text, sizeof(text))) return false;
  if (!*read_version(text, bound) && bound->count) return true;
  return tf_json_fail(j, "'%s' is no version", text);
}

// Reads a range of drivers, and returns whether the device's is within it.
static bool read_driver(tf_json* j, const tf_device* d) {
  char key[16], prefix[64] = "";
  version from = {0}, to = {0}, found = {0};
  unsigned count = 0;
  if (!tf_json_open(j, '{')) return false;
  while (tf_json_more(j, '}', &count)) {
    if (!tf_json_key(j, key, sizeof(key))) continue;
    if (!strcmp(key, "prefix"))
      (void)tf_json_string(j, prefix, sizeof(prefix));
    else if (!strcmp(key, "from"))
      (void)read_bound(j, &from);
    else if (!strcmp(key, "to"))
      (void)read_bound(j, &to);
    else
      (void)tf_json_fail(j, "unknown key '%s' of 'driver'", key);
  }
  // Mali's drivers have their version only in the texts of device and platform.
  const char* const texts[] = {d->driver, d->version, d->platform_version};
  const char* at = NULL;
  for (int i = 0; !at && i < (*prefix ? 3 : 1); ++i) at = strstr(texts[i], prefix);
  if (at) (void)read_version(at + strlen(prefix), &found);
  return found.count && (!from.count || compare(&found, &from) >= 0) &&
         (!to.count || compare(&found, &to) <= 0);
}

// Reads a pattern, and returns whether it is in one of the texts.
static bool read_pattern(tf_json* j, const char* text, const char* other) {
  char pattern[64];
  if (!tf_json_string(j, pattern, sizeof(pattern))) return false;
  if (!*pattern) return tf_json_fail(j, "an empty pattern");
  return contains(text, pattern) || contains(other, pattern);
}

// Reads a pattern or an array of them, of which one must be in one of the texts.
static bool read_patterns(tf_json* j, const char* text, const char* other) {
  if (!tf_json_is(j, '[')) return read_pattern(j, text, other);
  bool found = false;
  unsigned count = 0;
  (void)tf_json_open(j, '[');
  while (tf_json_more(j, ']', &count))
    if (read_pattern(j, text, other)) found = true;
  return found;
}

// Reads an array of names, which are those from `first` to before `end`, as bits.
static uint32_t read_names(tf_json* j, unsigned first, unsigned end) {
  char name[32];
  uint32_t bits = 0;
  unsigned count = 0;
  if (!tf_json_open(j, '[')) return 0;
  while (tf_json_more(j, ']', &count)) {
    if (!tf_json_string(j, name, sizeof(name))) continue;
    unsigned bit = first;
    while (bit < end && strcmp(name, names[bit]) != 0) ++bit;
    if (bit == end) (void)tf_json_fail(j, "unknown action '%s'", name);
    bits |= 1u << bit;
  }
  return bits;
}

static void read_actions(tf_json* j, entry* e) {
  char key[16];
  unsigned count = 0;
  if (!tf_json_open(j, '{')) return;
  while (tf_json_more(j, '}', &count)) {
    if (!tf_json_key(j, key, sizeof(key))) continue;
    if (!strcmp(key, "options"))
      (void)tf_json_string(j, e->options, sizeof(e->options));
    else if (!strcmp(key, "avoid"))
      e->avoided |= read_names(j, 0, AVOIDED);
    else if (!strcmp(key, "use"))
      e->avoided |= read_names(j, AVOIDED, NAMES);
    else
      (void)tf_json_fail(j, "unknown action '%s'", key);
  }
  if (!*e->options && !e->avoided) (void)tf_json_fail(j, "there is no action");
}

// Reads an entry, and whether it is for the device.
static void read_entry(tf_json* j, const tf_device* d, entry* e) {
  enum { ID, FAULT, REPORT, PLATFORM, DEVICE, DRIVER, ACTIONS, KEYS };
  static const char* const keys[] = {"id",     "fault",  "report", "platform",
                                     "device", "driver", "actions"};
  char name[16];
  unsigned count = 0, seen = 0;
  *e = (entry){.matches = true};
  if (!tf_json_open(j, '{')) return;
  while (tf_json_more(j, '}', &count)) {
    if (!tf_json_key(j, name, sizeof(name))) continue;
    unsigned key = 0;
    while (key < KEYS && strcmp(name, keys[key]) != 0) ++key;
    if (key == KEYS || seen >> key & 1) {
      (void)tf_json_fail(j, "%s key '%s'", key == KEYS ? "unknown" : "a second", name);
      continue;
    }
    seen |= 1u << key;
    if (key == ID) (void)tf_json_string(j, e->id, sizeof(e->id));
    if (key == FAULT) (void)tf_json_string(j, e->fault, sizeof(e->fault));
    if (key == REPORT) (void)tf_json_string(j, e->report, sizeof(e->report));
    // Adreno's number is in the version, and in newer drivers also in the name.
    if (key == DEVICE && !read_patterns(j, d->name, d->version)) e->matches = false;
    if (key == PLATFORM && !read_patterns(j, d->platform_name, "")) e->matches = false;
    if (key == DRIVER && !read_driver(j, d)) e->matches = false;
    if (key == ACTIONS) read_actions(j, e);
  }
  static const unsigned needed[] = {1u << ID, 1u << FAULT, 1u << ACTIONS,
                                    1u << PLATFORM | 1u << DEVICE};
  static const char* const parts[] = {"'id'", "'fault'", "'actions'", "'platform' or 'device'"};
  for (int i = 0; i < 4; ++i)
    if (!(seen & needed[i])) (void)tf_json_fail(j, "the entry '%s' has no %s", e->id, parts[i]);
}

// Appends an action: the names of bits from `first` to before `end`, if any is set.
static void append_names(char* text, size_t bytes, uint32_t bits, unsigned first, unsigned end) {
  const char* separator = "";
  tf_append(text, bytes, "\"%s\":[", first ? "use" : "avoid");
  for (unsigned bit = first; bit < end; ++bit) {
    if (!(bits >> bit & 1)) continue;
    tf_append(text, bytes, "%s\"%s\"", separator, names[bit]);
    separator = ",";
  }
  tf_append(text, bytes, "]");
}

// Adds the fault to the model's description and to the log.
static tvmflow_status describe(tvmflow_model* m, const entry* e) {
  // Texts may double in length when their quotes are escaped.
  const size_t used = m->faults ? strlen(m->faults) : 0, bytes = used + 2 * sizeof(*e);
  char* const faults = realloc(m->faults, bytes);
  if (!faults) return tf_fail(&m->message, TVMFLOW_ERROR_MEMORY, "No memory for a fault.");
  m->faults = faults;
  faults[used] = 0;
  tf_append(faults, bytes, "%s{", used ? "," : "");
  tf_describe_text(faults, bytes, "id", e->id);
  tf_describe_text(faults, bytes, "fault", e->fault);
  const size_t actions = strlen(faults);
  tf_append(faults, bytes, "\"actions\":{");
  if (*e->options) tf_describe_text(faults, bytes, "options", e->options);
  append_names(faults, bytes, e->avoided, 0, AVOIDED);
  tf_append(faults, bytes, ",");
  append_names(faults, bytes, e->avoided, AVOIDED, NAMES);
  tf_append(faults, bytes, "}}");
  tf_log(m, TVMFLOW_LOG_INFO, "Device '%s' has the known fault '%s': %s {%s Report: %s",
         m->device.name, e->id, e->fault, faults + actions, *e->report ? e->report : "none");
  return TVMFLOW_OK;
}

// Applies the actions of an entry that is for the device.
static tvmflow_status apply(tvmflow_model* m, tf_json* j, const entry* e) {
  m->avoided |= e->avoided;
  if (*e->options) {
    if (strlen(m->fault_options) + strlen(e->options) + 2 > sizeof(m->fault_options))
      (void)tf_json_fail(j, "the options of all faults of the device are too long");
    tf_append(m->fault_options, sizeof(m->fault_options), " %s", e->options);
  }
  const tvmflow_status status = describe(m, e);
  if (status || !m->may_fall_back || !(e->avoided & TF_AVOID_OPENCL)) return status;
  return tf_fail(&m->message, TVMFLOW_ERROR_UNSUPPORTED,
                 "Device '%s' has the known fault '%s': %s. Remedy: update its driver.",
                 m->device.name, e->id, e->fault);
}

static tvmflow_status read_table(tvmflow_model* m, const char* text, size_t bytes,
                                 const char* place) {
  tf_json j = tf_json_begin(text, bytes);
  tvmflow_status status = TVMFLOW_OK;
  unsigned count = 0;
  entry e;
  (void)tf_json_open(&j, '[');
  while (tf_json_more(&j, ']', &count)) {
    read_entry(&j, &m->device, &e);
    if (*j.wrong || !e.matches || m->backend != TVMFLOW_OPENCL) continue;
    const tvmflow_status applied = apply(m, &j, &e);
    if (applied) status = applied;
  }
  if (tf_json_end(&j)) return status;
  return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                 "Reading the table of drivers' faults in %s: %s. Remedy: docs/standalone.md has "
                 "the format.",
                 place, j.wrong);
}

tvmflow_status tf_faults_find(tvmflow_model* m, const char* table) {
  size_t bytes = 0;
  const char* const own = tf_library_drivers(&bytes);
  tvmflow_status status = read_table(m, own, bytes, "the library");
  if (table && (!status || status == TVMFLOW_ERROR_UNSUPPORTED)) {
    const tvmflow_status more = read_table(m, table, strlen(table), "the options");
    if (more) status = more;
  }
  return status;
}
