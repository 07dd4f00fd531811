#define _GNU_SOURCE  // dladdr

#include "cache.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../opencl/sha256_state.h"
#include "weights.h"

static const char magic[8] = {'T', 'V', 'M', 'F', 'L', 'O', 'W', 'P'};
static const char suffix[] = ".program";
static const char temporary_prefix[] = "tmp-";
// Age at which a temporary file was left by a writer that died.
enum { FORMAT = 1, DIGEST_BYTES = 32, MAX_PATH = 4096, STALE_SECONDS = 3600 };

// The header of a binary's file, as in native/opencl/program_cache.cc but with other keys, so that
// both can share a folder.
typedef struct entry_header {
  char magic[8];
  uint32_t format;
  uint32_t driver;
  uint8_t key[DIGEST_BYTES];
  uint64_t bytes;
  uint8_t checksum[DIGEST_BYTES];
} entry_header;

static void give_up(tf_cache* cache, const char* attempt, int code) {
  snprintf(cache->note, sizeof(cache->note), "%s the cache folder failed (%s): nothing is kept",
           attempt,
           code == ENOSPC   ? "it is full"
           : code == EACCES ? "no permission"
                            : strerror(code));
}

static bool entry_path(const tf_cache* cache, const uint8_t* key, char path[MAX_PATH]) {
  char name[2 * DIGEST_BYTES + 1];
  for (int i = 0; i < DIGEST_BYTES; ++i) snprintf(name + 2 * i, 3, "%02x", key[i]);
  return snprintf(path, MAX_PATH, "%s/%s%s", cache->folder, name, suffix) < MAX_PATH;
}

bool tf_cache_open(tf_cache* cache, const char* folder, const void* driver_function) {
  tf_shipped_open(cache);
  if (!folder || !*folder) return true;
  Dl_info info;
  struct stat file;
  if (dladdr(driver_function, &info) && info.dli_fname && stat(info.dli_fname, &file) == 0)
    cache->driver = (uint32_t)file.st_size * 31 + (uint32_t)file.st_mtim.tv_sec;
  cache->folder = malloc(strlen(folder) + 1);
  if (!cache->folder) return false;
  strcpy(cache->folder, folder);
  // Create the folder and its parents for this user only.
  for (char* slash = cache->folder;; *slash = '/') {
    slash = strchr(slash + 1, '/');
    if (slash) *slash = 0;
    const bool made = mkdir(cache->folder, 0700) == 0 || errno == EEXIST;
    if (slash) continue;
    if (!made) give_up(cache, "Making", errno);
    return true;
  }
}

void tf_cache_close(tf_cache* cache) {
  if (cache->shipped) munmap((void*)(uintptr_t)cache->shipped, cache->shipped_bytes);
  free(cache->folder);
  *cache = (tf_cache){0};
}

// Reads that come up short have reached the end of the file.
static bool read_all(int file, void* data, size_t bytes) {
  return read(file, data, bytes) == (ssize_t)bytes;
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

static uint8_t* read_entry(const tf_cache* cache, int file, const uint8_t* key, size_t* bytes) {
  struct stat status;
  entry_header header;
  // Its content will be executed, so no other user may have been able to write it.
  if (fstat(file, &status) || status.st_uid != geteuid() || status.st_mode & (S_IWGRP | S_IWOTH) ||
      !read_all(file, &header, sizeof(header)) || memcmp(header.magic, magic, sizeof(magic)) ||
      header.format != FORMAT || header.driver != cache->driver ||
      memcmp(header.key, key, sizeof(header.key)) || header.bytes == 0 ||
      header.bytes > TF_CACHE_LIMIT_BYTES ||
      header.bytes != (uint64_t)status.st_size - sizeof(header))
    return NULL;
  uint8_t* const binary = malloc(header.bytes);
  uint8_t digest[DIGEST_BYTES];
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

uint8_t* tf_cache_load(const tf_cache* cache, const uint8_t key[32], size_t* bytes, bool* shipped) {
  char path[MAX_PATH];
  uint8_t* binary = NULL;
  const char* wrong;
  const int file =
      cache->folder && entry_path(cache, key, path) ? tf_open_file(path, bytes, &wrong) : -1;
  if (file >= 0) {
    binary = read_entry(cache, file, key, bytes);
    close(file);
  }
  const uint8_t* const found = binary ? NULL : tf_shipped_find(cache, key, bytes);
  *shipped = found != NULL;
  if (!found) return binary;
  binary = malloc(*bytes);
  if (binary) memcpy(binary, found, *bytes);
  return binary;
}

// Removes stale temporary files, and the least recently used files until the rest is within the
// limit.
static void trim(const tf_cache* cache) {
  for (uint64_t before = 0, total;; before = total) {
    DIR* const folder = opendir(cache->folder);
    if (!folder) return;
    char path[MAX_PATH];
    char oldest[MAX_PATH] = "";
    time_t oldest_time = 0;
    total = 0;
    for (const struct dirent* item; (item = readdir(folder)) != NULL;) {
      struct stat file;
      const char* const end = strrchr(item->d_name, '.');
      const int length = snprintf(path, sizeof(path), "%s/%s", cache->folder, item->d_name);
      if (length >= MAX_PATH || lstat(path, &file)) continue;
      if (!strncmp(item->d_name, temporary_prefix, strlen(temporary_prefix))) {
        if (time(NULL) - file.st_mtim.tv_sec > STALE_SECONDS) unlink(path);
      } else if (end && !strcmp(end, suffix)) {
        total += (uint64_t)file.st_size;
        if (*oldest && file.st_mtim.tv_sec >= oldest_time) continue;
        strcpy(oldest, path);
        oldest_time = file.st_mtim.tv_sec;
      }
    }
    closedir(folder);
    // The loop also ends if files cannot be removed.
    if (total <= TF_CACHE_LIMIT_BYTES || total == before || unlink(oldest) != 0) return;
  }
}

void tf_cache_store(tf_cache* cache, const uint8_t key[32], const uint8_t* binary, size_t bytes) {
  char path[MAX_PATH];
  char temporary[MAX_PATH];
  if (!cache->folder || *cache->note || bytes > TF_CACHE_LIMIT_BYTES ||
      !entry_path(cache, key, path))
    return;
  // The address distinguishes instances of a process.
  const int length = snprintf(temporary, sizeof(temporary), "%s/%s%d-%p", cache->folder,
                              temporary_prefix, (int)getpid(), (void*)cache);
  if (length >= MAX_PATH) return;
  entry_header header = {.format = FORMAT, .driver = cache->driver, .bytes = bytes};
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
    trim(cache);
    return;
  }
  give_up(cache, "Writing to", errno);
  if (file >= 0) unlink(temporary);
}
