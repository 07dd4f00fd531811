#define _GNU_SOURCE  // dladdr

#include "binaries.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "sha256_state.h"

static const char magic[8] = {'T', 'V', 'M', 'F', 'L', 'O', 'W', 'P'};
static const char suffix[] = ".program";
static const char temporary_prefix[] = "tmp-";
// Age at which a temporary file was left by a writer that died.
enum { FORMAT = 1, MAX_PATH = 4096, STALE_SECONDS = 3600 };

typedef struct entry_header {
  char magic[8];
  uint32_t format;
  uint32_t driver;
  uint8_t key[TF_KEY_BYTES];
  uint64_t bytes;
  uint8_t checksum[TF_KEY_BYTES];  // of the binary after the header
} entry_header;

// A file of the folder, in a list.
typedef struct entry {
  struct entry* next;
  uint64_t bytes;
  struct timespec used;
  char path[];
} entry;

int tf_make_folder(const char* path) {
  char* const part = malloc(strlen(path) + 1);
  if (!part) return ENOMEM;
  strcpy(part, path);
  int code = 0;
  for (char* slash = part; slash && *slash; *slash = '/') {
    slash = strchr(slash + 1, '/');
    if (slash) *slash = 0;
    code = mkdir(part, 0700) == 0 || errno == EEXIST ? 0 : errno;
    if (!slash) break;
  }
  free(part);
  return code;
}

bool tf_file_of(const void* function, struct stat* file) {
  Dl_info info;
  return function && dladdr(function, &info) && info.dli_fname && stat(info.dli_fname, file) == 0;
}

int tf_open_file(const char* path, size_t* bytes, const char** wrong) {
  static const char* const no_file = "it is no regular file";
  struct stat status;
  *wrong = NULL;
  // Opening a FIFO waits for a writer, and opening a device may have effects.
  if (stat(path, &status))
    *wrong = strerror(errno);
  else if (!S_ISREG(status.st_mode))
    *wrong = no_file;
  if (*wrong) return -1;
  const int file = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (file < 0) *wrong = strerror(errno);
  if (file >= 0 && (fstat(file, &status) || !S_ISREG(status.st_mode))) *wrong = no_file;
  *bytes = (size_t)status.st_size;
  if (!*wrong) return file;
  if (file >= 0) close(file);
  return -1;
}

static bool entry_path(const tf_binaries* b, const uint8_t* key, char path[MAX_PATH]) {
  char name[2 * TF_KEY_BYTES + 1];
  for (int i = 0; i < TF_KEY_BYTES; ++i) snprintf(name + 2 * i, 3, "%02x", key[i]);
  return snprintf(path, MAX_PATH, "%s/%s%s", b->folder, name, suffix) < MAX_PATH;
}

static bool read_all(int file, void* data, size_t bytes) {
  for (uint8_t* at = data; bytes > 0;) {
    const ssize_t got = read(file, at, bytes);
    if (got <= 0) return false;
    at += got;
    bytes -= (size_t)got;
  }
  return true;
}

static bool write_all(int file, const void* data, size_t bytes) {
  for (const uint8_t* at = data; bytes > 0;) {
    const ssize_t put = write(file, at, bytes);
    if (put <= 0) return false;
    at += put;
    bytes -= (size_t)put;
  }
  return true;
}

static uint8_t* read_entry(const tf_binaries* b, int file, const uint8_t* key, size_t* bytes) {
  struct stat status;
  entry_header header;
  // Its content will be executed, so no other user may have been able to write it.
  if (fstat(file, &status) || status.st_uid != geteuid() || status.st_mode & (S_IWGRP | S_IWOTH) ||
      !read_all(file, &header, sizeof(header)) || memcmp(header.magic, magic, sizeof(magic)) ||
      header.format != FORMAT || header.driver != b->driver ||
      memcmp(header.key, key, sizeof(header.key)) || header.bytes == 0 ||
      header.bytes > b->limit_bytes || header.bytes != (uint64_t)status.st_size - sizeof(header))
    return NULL;
  uint8_t* const binary = malloc(header.bytes);
  uint8_t digest[TF_KEY_BYTES];
  if (binary && read_all(file, binary, header.bytes)) {
    Sha256Digest(binary, header.bytes, digest);
    if (!memcmp(digest, header.checksum, sizeof(digest))) {
      // The time of the last use decides which files are removed when the folder is full.
      (void)futimens(file, NULL);
      *bytes = header.bytes;
      return binary;
    }
  }
  free(binary);
  return NULL;
}

uint8_t* tf_binary_load(const tf_binaries* b, const uint8_t key[TF_KEY_BYTES], size_t* bytes,
                        bool* damaged) {
  char path[MAX_PATH];
  const char* wrong;
  const int file = entry_path(b, key, path) ? tf_open_file(path, bytes, &wrong) : -1;
  *damaged = false;
  if (file < 0) return NULL;
  uint8_t* const binary = read_entry(b, file, key, bytes);
  close(file);
  *damaged = !binary;
  return binary;
}

static bool is_older(const entry* a, const entry* b) {
  return a->used.tv_sec != b->used.tv_sec ? a->used.tv_sec < b->used.tv_sec
                                          : a->used.tv_nsec < b->used.tv_nsec;
}

// Lists the binaries' files and their size, and removes stale temporary files.
static entry* list_entries(const tf_binaries* b, uint64_t* total) {
  entry* first = NULL;
  DIR* const folder = opendir(b->folder);
  if (!folder) return NULL;
  for (const struct dirent* item; (item = readdir(folder)) != NULL;) {
    char path[MAX_PATH];
    struct stat file;
    const char* const end = strrchr(item->d_name, '.');
    const int length = snprintf(path, sizeof(path), "%s/%s", b->folder, item->d_name);
    if (length >= MAX_PATH || lstat(path, &file) || !S_ISREG(file.st_mode)) continue;
    if (!strncmp(item->d_name, temporary_prefix, strlen(temporary_prefix))) {
      if (time(NULL) - file.st_mtim.tv_sec > STALE_SECONDS) unlink(path);
    } else if (end && !strcmp(end, suffix)) {
      entry* const e = malloc(sizeof(entry) + (size_t)length + 1);
      if (!e) break;
      *e = (entry){first, (uint64_t)file.st_size, file.st_mtim};
      strcpy(e->path, path);
      *total += e->bytes;
      first = e;
    }
  }
  closedir(folder);
  return first;
}

// Removes the least recently used files, down to nine tenths of the limit, so that not every store
// has to remove some; but not the newest.
static void trim(const tf_binaries* b) {
  uint64_t total = 0;
  entry* list = list_entries(b, &total);
  const uint64_t target = total > b->limit_bytes ? b->limit_bytes / 10 * 9 : total;
  while (list) {
    entry** oldest = &list;
    for (entry** e = &list; total > target && *e; e = &(*e)->next)
      if (is_older(*e, *oldest)) oldest = e;
    entry* const e = *oldest;
    *oldest = e->next;
    if (total > target && list && unlink(e->path) == 0) total -= e->bytes;
    free(e);
  }
}

int tf_binary_store(const tf_binaries* b, const uint8_t key[TF_KEY_BYTES], const uint8_t* binary,
                    size_t bytes) {
  static unsigned stores;
  char path[MAX_PATH];
  char temporary[MAX_PATH];
  if (bytes > b->limit_bytes || !entry_path(b, key, path)) return -1;
  const int length =
      snprintf(temporary, sizeof(temporary), "%s/%s%d-%u", b->folder, temporary_prefix,
               (int)getpid(), __atomic_fetch_add(&stores, 1, __ATOMIC_RELAXED));
  if (length >= MAX_PATH) return -1;
  entry_header header = {.format = FORMAT, .driver = b->driver, .bytes = bytes};
  memcpy(header.magic, magic, sizeof(magic));
  memcpy(header.key, key, sizeof(header.key));
  Sha256Digest(binary, bytes, header.checksum);
  // An earlier process with the same id may have left a file; a link is removed, never followed.
  unlink(temporary);
  const int file = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  bool written =
      file >= 0 && write_all(file, &header, sizeof(header)) && write_all(file, binary, bytes);
  if (file >= 0 && close(file) != 0) written = false;
  if (written && rename(temporary, path) == 0) {
    trim(b);
    return 0;
  }
  const int code = errno;
  if (file >= 0) unlink(temporary);
  return code;
}
