#define _GNU_SOURCE  // dladdr
#include "weights.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// What the link step puts beside the runtime.
#define TF_HIDDEN __attribute__((visibility("hidden")))
extern const uint8_t tvmflow_plan_begin[] TF_HIDDEN;
extern const uint8_t tvmflow_plan_end[] TF_HIDDEN;
extern const uint8_t tvmflow_weights_begin[] TF_HIDDEN;
extern const uint8_t tvmflow_weights_end[] TF_HIDDEN;

enum { MAX_PATH = 4096 };

const void* tf_library_plan(size_t* bytes) {
  *bytes = (size_t)(tvmflow_plan_end - tvmflow_plan_begin);
  return tvmflow_plan_begin;
}

bool tf_library_path(char* path, size_t bytes, const char* suffix) {
  Dl_info info;
  if (!dladdr(tvmflow_plan_begin, &info) || !info.dli_fname) return false;
  const int length = snprintf(path, bytes, "%s%s", info.dli_fname, suffix);
  return length >= 0 && (size_t)length < bytes;
}

// Where bytes of the file end that segments are made of, from the program headers in memory.
static uint64_t end_of_segments(const uint8_t* base) {
  // Offsets of fields in the headers of 64-bit ELF files.
  enum { PHOFF = 32, PHENTSIZE = 54, PHNUM = 56, P_OFFSET = 8, P_FILESZ = 32 };
  const uint32_t load = 1;
  uint64_t table;
  uint16_t entry_bytes;
  uint16_t entries;
  if (memcmp(base, "\177ELF\2", 5)) return 0;
  memcpy(&table, base + PHOFF, sizeof(table));
  memcpy(&entry_bytes, base + PHENTSIZE, sizeof(entry_bytes));
  memcpy(&entries, base + PHNUM, sizeof(entries));
  uint64_t end = 0;
  for (uint16_t i = 0; i < entries; ++i) {
    const uint8_t* const entry = base + table + (size_t)i * entry_bytes;
    uint32_t type;
    uint64_t offset;
    uint64_t bytes;
    memcpy(&type, entry, sizeof(type));
    memcpy(&offset, entry + P_OFFSET, sizeof(offset));
    memcpy(&bytes, entry + P_FILESZ, sizeof(bytes));
    if (type == load && offset + bytes > end) end = offset + bytes;
  }
  return end;
}

tvmflow_status tf_library_check(tf_message* message) {
  Dl_info info;
  struct stat file;
  // Android opens libraries inside an APK: then there is no file of that name.
  if (!dladdr(tvmflow_plan_begin, &info) || !info.dli_fbase || !info.dli_fname ||
      stat(info.dli_fname, &file) || !S_ISREG(file.st_mode))
    return TVMFLOW_OK;
  const uint64_t needed = end_of_segments(info.dli_fbase);
  if ((uint64_t)file.st_size >= needed) return TVMFLOW_OK;
  return tf_fail(message, TVMFLOW_ERROR_DAMAGED,
                 "Opening the library '%s': expected at least %llu bytes, got %lld; it was cut "
                 "short. Remedy: copy the library again.",
                 info.dli_fname, (unsigned long long)needed, (long long)file.st_size);
}

static tvmflow_status check_header(const tf_weights* weights, const tf_plan* plan, const char* name,
                                   tf_message* message) {
  const tf_weights_header* const header = (const void*)weights->data;
  if (weights->bytes != plan->header->weight_bytes || memcmp(header->magic, TF_WEIGHTS_MAGIC, 8) ||
      header->bytes != weights->bytes)
    return tf_fail(message, TVMFLOW_ERROR_DAMAGED,
                   "Reading the weights in '%s': expected %llu bytes of weights, got %zu bytes "
                   "that are not those; they are damaged or cut short. Remedy: copy them again.",
                   name, (unsigned long long)plan->header->weight_bytes, weights->bytes);
  if (header->version == TF_FORMAT_VERSION &&
      !memcmp(header->id, plan->header->weights_id, sizeof(header->id)))
    return TVMFLOW_OK;
  return tf_fail(message, TVMFLOW_ERROR_DAMAGED,
                 "Reading the weights in '%s': they belong to another model. Remedy: put the "
                 "file that was written together with the library beside it.",
                 name);
}

static tvmflow_status map_file(tf_weights* weights, const char* path, tf_message* message) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  struct stat status = {0};
  const char* wrong = file < 0 ? strerror(errno) : NULL;
  if (!wrong && (fstat(file, &status) || !S_ISREG(status.st_mode))) wrong = "it is no file";
  if (!wrong && (uint64_t)status.st_size < sizeof(tf_weights_header)) wrong = "it was cut short";
  void* const mapping =
      wrong ? NULL : mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
  const int code = errno;
  if (file >= 0) close(file);
  if (wrong)
    return tf_fail(message, TVMFLOW_ERROR_DAMAGED,
                   "Opening the weights '%s': %s. Remedy: put the file that was written together "
                   "with the library beside it, or name it in the options' weights_path.",
                   path, wrong);
  if (mapping == MAP_FAILED)
    return tf_fail(message, TVMFLOW_ERROR_MEMORY, "Mapping the weights '%s': %s.", path,
                   strerror(code));
  weights->data = weights->mapping = mapping;
  weights->bytes = (size_t)status.st_size;
  return TVMFLOW_OK;
}

tvmflow_status tf_weights_open(tf_weights* weights, const tf_plan* plan, const char* path,
                               tf_message* message) {
  if (plan->header->weight_bytes == 0) return TVMFLOW_OK;
  const size_t embedded = (size_t)(tvmflow_weights_end - tvmflow_weights_begin);
  if (embedded >= sizeof(tf_weights_header)) {
    weights->data = tvmflow_weights_begin;
    weights->bytes = embedded;
    return check_header(weights, plan, "the library", message);
  }
  char beside[MAX_PATH];
  if (!path) {
    if (!tf_library_path(beside, sizeof(beside), ".weights"))
      return tf_fail(message, TVMFLOW_ERROR_ARGUMENT,
                     "Opening the weights: it is not known where the library lies. Remedy: name "
                     "the file in the options' weights_path.");
    path = beside;
  }
  const tvmflow_status status = map_file(weights, path, message);
  return status ? status : check_header(weights, plan, path, message);
}

void tf_weights_close(tf_weights* weights) {
  if (weights->mapping) munmap(weights->mapping, weights->bytes);
}
