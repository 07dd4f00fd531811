#define _GNU_SOURCE  // dladdr
#include "weights.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../core/binaries.h"

// Symbols that the link step defines.
#define TF_HIDDEN __attribute__((visibility("hidden")))
extern const uint8_t tvmflow_plan_begin[] TF_HIDDEN;
extern const uint8_t tvmflow_plan_end[] TF_HIDDEN;
extern const uint8_t tvmflow_cpu_plan_begin[] TF_HIDDEN;
extern const uint8_t tvmflow_cpu_plan_end[] TF_HIDDEN;
extern const char tvmflow_drivers_begin[] TF_HIDDEN;
extern const char tvmflow_drivers_end[] TF_HIDDEN;
extern const uint8_t tvmflow_weights_begin[] TF_HIDDEN;
extern const uint8_t tvmflow_weights_end[] TF_HIDDEN;

// Size of the pieces in which the checksum of weights is computed.
enum { MAX_PATH = 4096, PIECE_BYTES = 16 << 20 };

const void* tf_library_plan(tvmflow_backend backend, size_t* bytes) {
  const bool cpu = backend == TVMFLOW_CPU;
  *bytes = cpu ? (size_t)(tvmflow_cpu_plan_end - tvmflow_cpu_plan_begin)
               : (size_t)(tvmflow_plan_end - tvmflow_plan_begin);
  return cpu ? tvmflow_cpu_plan_begin : tvmflow_plan_begin;
}

const char* tf_library_drivers(size_t* bytes) {
  *bytes = (size_t)(tvmflow_drivers_end - tvmflow_drivers_begin);
  return tvmflow_drivers_begin;
}

bool tf_library_path(char* path, size_t bytes, const char* suffix) {
  Dl_info info;
  if (!dladdr(tvmflow_plan_begin, &info) || !info.dli_fname) return false;
  const int length = snprintf(path, bytes, "%s%s", info.dli_fname, suffix);
  return length >= 0 && (size_t)length < bytes;
}

// The file that this library was loaded from; another file may have replaced it since.
static dev_t loaded_device;
static ino_t loaded_inode;

// Finds the library's file.  There is none if Android has opened the library inside an APK.
static bool find_file(Dl_info* info, struct stat* file) {
  return dladdr(tvmflow_plan_begin, info) && info->dli_fbase && info->dli_fname &&
         !stat(info->dli_fname, file) && S_ISREG(file->st_mode);
}

__attribute__((constructor)) static void remember_file(void) {
  Dl_info info;
  struct stat file;
  if (!find_file(&info, &file)) return;
  loaded_device = file.st_dev;
  loaded_inode = file.st_ino;
}

// Returns the end of the last segment in the file, from the program headers in memory.
static uint64_t end_of_segments(const void* base) {
  const Elf64_Ehdr* const file = base;
  const Elf64_Phdr* const segments = (const void*)((const char*)base + file->e_phoff);
  if (memcmp(file->e_ident, ELFMAG, SELFMAG) || file->e_ident[EI_CLASS] != ELFCLASS64) return 0;
  uint64_t end = 0;
  for (uint16_t i = 0; i < file->e_phnum; ++i) {
    const uint64_t of_segment = segments[i].p_offset + segments[i].p_filesz;
    if (segments[i].p_type == PT_LOAD && of_segment > end) end = of_segment;
  }
  return end;
}

tvmflow_status tf_library_check(tf_message* message) {
  Dl_info info;
  struct stat file;
  if (!find_file(&info, &file) || file.st_dev != loaded_device || file.st_ino != loaded_inode)
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
  if (header->version == TF_WEIGHTS_VERSION &&
      !memcmp(header->id, plan->header->weights_id, sizeof(header->id)))
    return TVMFLOW_OK;
  return tf_fail(message, TVMFLOW_ERROR_DAMAGED,
                 "Reading the weights in '%s': they belong to another model. Remedy: put the "
                 "file that was written together with the library beside it.",
                 name);
}

void tf_forget(const uint8_t* data, size_t bytes) {
  const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  const uintptr_t begin = ((uintptr_t)data + page - 1) & ~(page - 1);
  const uintptr_t end = ((uintptr_t)data + bytes) & ~(page - 1);
  if (begin < end) madvise((void*)begin, end - begin, MADV_DONTNEED);
}

// A comparison of the content with its checksum.
struct tf_weights_check {
  pthread_t thread;
  bool running;  // the thread was not joined yet
  bool damaged;
  const uint8_t* data;
  size_t bytes;
  char name[512];  // of the file
};

static void* compare(void* argument) {
  struct tf_weights_check* const check = argument;
  const tf_weights_header* const header = (const void*)check->data;
  const uint8_t* at = check->data + sizeof(*header);
  size_t left = check->bytes - sizeof(*header);
  tf_checksum sum = tf_checksum_begin();
  for (; left >= PIECE_BYTES; at += PIECE_BYTES, left -= PIECE_BYTES) {
    tf_checksum_stripes(&sum, at, PIECE_BYTES);
    tf_forget(at, PIECE_BYTES);
  }
  const size_t rest = left % TF_STRIPE_BYTES;
  tf_checksum_stripes(&sum, at, left - rest);
  check->damaged = tf_checksum_end(&sum, at + left - rest, rest) != header->checksum;
  return NULL;
}

static tvmflow_status begin_check(tf_weights* weights, const char* name, tf_message* message) {
  struct tf_weights_check* const check = calloc(1, sizeof(*check));
  if (!check)
    return tf_fail(message, TVMFLOW_ERROR_MEMORY, "No memory to check the weights in '%s'.", name);
  check->data = weights->data;
  check->bytes = weights->bytes;
  snprintf(check->name, sizeof(check->name), "%s", name);
  weights->check = check;
  check->running = !pthread_create(&check->thread, NULL, compare, check);
  if (!check->running) compare(check);
  return TVMFLOW_OK;
}

static void wait_for(struct tf_weights_check* check) {
  if (check && check->running) pthread_join(check->thread, NULL);
  if (check) check->running = false;
}

tvmflow_status tf_weights_checked(const tf_weights* weights, tf_message* message) {
  wait_for(weights->check);
  if (!weights->check || !weights->check->damaged) return TVMFLOW_OK;
  return tf_fail(message, TVMFLOW_ERROR_DAMAGED,
                 "Reading the weights in '%s': they are damaged, their checksum is not what was "
                 "written. Remedy: copy them again.",
                 weights->check->name);
}

tvmflow_status tf_map_file(const char* path, size_t least, const uint8_t** data, size_t* bytes,
                           const char** wrong) {
  const int file = tf_open_file(path, bytes, wrong);
  if (!*wrong && *bytes < least) *wrong = "it was cut short";
  void* const mapping = *wrong ? NULL : mmap(NULL, *bytes, PROT_READ, MAP_PRIVATE, file, 0);
  const int code = errno;
  if (file >= 0) close(file);
  if (*wrong) return TVMFLOW_ERROR_DAMAGED;
  *wrong = strerror(code);
  if (mapping == MAP_FAILED) return TVMFLOW_ERROR_MEMORY;
  *data = mapping;
  return TVMFLOW_OK;
}

tvmflow_status tf_weights_open(tf_weights* weights, const tf_plan* plan, const char* path,
                               bool check, tf_message* message) {
  if (plan->header->weight_bytes == 0) return TVMFLOW_OK;
  const size_t embedded = (size_t)(tvmflow_weights_end - tvmflow_weights_begin);
  if (embedded >= sizeof(tf_weights_header)) {
    weights->data = tvmflow_weights_begin;
    weights->bytes = embedded;
    const tvmflow_status wrong = check_header(weights, plan, "the library", message);
    return wrong || !check ? wrong : begin_check(weights, "the library", message);
  }
  char beside[MAX_PATH];
  if (!path) {
    if (!tf_library_path(beside, sizeof(beside), ".weights"))
      return tf_fail(message, TVMFLOW_ERROR_ARGUMENT,
                     "Opening the weights: it is not known where the library lies. Remedy: name "
                     "the file in the options' weights_path.");
    path = beside;
  }
  const char* wrong;
  const tvmflow_status status =
      tf_map_file(path, sizeof(tf_weights_header), &weights->data, &weights->bytes, &wrong);
  if (status)
    return tf_fail(message, status,
                   "Opening the weights '%s': %s. Remedy: put the file that was written together "
                   "with the library beside it, or name it in the options' weights_path.",
                   path, wrong);
  weights->mapped = true;
  const tvmflow_status damaged = check_header(weights, plan, path, message);
  return damaged || !check ? damaged : begin_check(weights, path, message);
}

void tf_weights_close(tf_weights* weights) {
  wait_for(weights->check);
  free(weights->check);
  if (weights->mapped) munmap((void*)(uintptr_t)weights->data, weights->bytes);
}
