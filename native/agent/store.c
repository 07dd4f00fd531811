#include "store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../core/binaries.h"
#include "../core/sha256_state.h"

enum { HEX_BYTES = 2 * AGENT_DIGEST_BYTES };

struct agent_upload {
  agent_store* store;
  uint8_t digest[AGENT_DIGEST_BYTES];
  uint64_t left;
  Sha256State hash;
  int file;
  char path[AGENT_MAX_PATH];
};

static void to_hex(const uint8_t* digest, char text[HEX_BYTES + 1]) {
  for (int i = 0; i < AGENT_DIGEST_BYTES; ++i) snprintf(text + 2 * i, 3, "%02x", digest[i]);
}

void agent_blob_path(const agent_store* store, const uint8_t* digest, char path[AGENT_MAX_PATH]) {
  char name[HEX_BYTES + 1];
  to_hex(digest, name);
  snprintf(path, AGENT_MAX_PATH, "%s/blobs/%s", store->folder, name);
}

int agent_store_make_folders(const agent_store* store) {
  static const char* const folders[] = {"blobs", "work", "cache"};
  char path[AGENT_MAX_PATH];
  int code = 0;
  for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]) && !code; ++i) {
    snprintf(path, sizeof(path), "%s/%s", store->folder, folders[i]);
    code = tf_make_folder(path);
  }
  return code;
}

int agent_store_open(agent_store* store, const char* folder, uint64_t limit_bytes) {
  *store = (agent_store){.limit_bytes = limit_bytes};
  if (strlen(folder) >= sizeof(store->folder)) return ENAMETOOLONG;
  strcpy(store->folder, folder);
  return agent_store_make_folders(store);
}

static bool is_used(const agent_store* store, const uint8_t* digest) {
  for (size_t i = 0; i < store->used_count; ++i)
    if (!memcmp(store->used[i], digest, AGENT_DIGEST_BYTES)) return true;
  return false;
}

static bool keep(agent_store* store, const uint8_t* digest) {
  if (is_used(store, digest)) return true;
  void* const more = realloc(store->used, (store->used_count + 1) * sizeof(*store->used));
  if (!more) return false;
  store->used = more;
  memcpy(store->used[store->used_count++], digest, AGENT_DIGEST_BYTES);
  return true;
}

bool agent_blob_use(agent_store* store, const uint8_t* digest) {
  char path[AGENT_MAX_PATH];
  agent_blob_path(store, digest, path);
  const int file = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  if (file < 0) return false;
  // The time of the last use decides which blobs are removed for new ones.
  (void)futimens(file, NULL);
  close(file);
  return keep(store, digest);
}

const void* agent_blob_map(const agent_store* store, const uint8_t* digest, size_t* bytes) {
  char path[AGENT_MAX_PATH];
  const char* wrong;
  agent_blob_path(store, digest, path);
  const int file = tf_open_file(path, bytes, &wrong);
  if (file < 0) return NULL;
  // There are no mappings of 0 bytes.
  const void* const data = *bytes ? mmap(NULL, *bytes, PROT_READ, MAP_PRIVATE, file, 0) : "";
  close(file);
  return data == MAP_FAILED ? NULL : data;
}

void agent_blob_unmap(const void* data, size_t bytes) {
  if (data && bytes) munmap((void*)data, bytes);
}

// Returns whether a name is a blob's, and its digest.
static bool from_hex(const char* name, uint8_t digest[AGENT_DIGEST_BYTES]) {
  if (strlen(name) != HEX_BYTES) return false;
  for (int i = 0; i < AGENT_DIGEST_BYTES; ++i) {
    const char byte[3] = {name[2 * i], name[2 * i + 1], 0};
    char* end;
    digest[i] = (uint8_t)strtoul(byte, &end, 16);
    if (*end) return false;
  }
  return true;
}

// Removes the blob that was not used for the longest time, unless this connection uses it.  Returns
// the size of all blobs that are left, and whether one was removed.
static bool remove_oldest(const agent_store* store, uint64_t* total) {
  char oldest[AGENT_MAX_PATH] = "";
  char path[AGENT_MAX_PATH];
  struct timespec age = {0, 0};
  uint64_t oldest_bytes = 0;
  snprintf(path, sizeof(path), "%s/blobs", store->folder);
  DIR* const folder = opendir(path);
  *total = 0;
  if (!folder) return false;
  for (const struct dirent* item; (item = readdir(folder)) != NULL;) {
    uint8_t digest[AGENT_DIGEST_BYTES];
    struct stat file;
    if (!from_hex(item->d_name, digest)) continue;
    agent_blob_path(store, digest, path);
    if (lstat(path, &file)) continue;
    *total += (uint64_t)file.st_size;
    if (is_used(store, digest)) continue;
    const struct timespec used = file.st_mtim;
    if (*oldest &&
        (used.tv_sec != age.tv_sec ? used.tv_sec > age.tv_sec : used.tv_nsec >= age.tv_nsec))
      continue;
    age = used;
    oldest_bytes = (uint64_t)file.st_size;
    strcpy(oldest, path);
  }
  closedir(folder);
  if (!*oldest || unlink(oldest)) return false;
  *total -= oldest_bytes;
  return true;
}

// Returns the size of all blobs.
static uint64_t size_of_blobs(const agent_store* store) {
  char path[AGENT_MAX_PATH];
  uint64_t total = 0;
  snprintf(path, sizeof(path), "%s/blobs", store->folder);
  DIR* const folder = opendir(path);
  if (!folder) return 0;
  for (const struct dirent* item; (item = readdir(folder)) != NULL;) {
    struct stat file;
    if (!fstatat(dirfd(folder), item->d_name, &file, 0) && S_ISREG(file.st_mode))
      total += (uint64_t)file.st_size;
  }
  closedir(folder);
  return total;
}

agent_upload* agent_upload_begin(agent_store* store, const uint8_t* digest, uint64_t bytes,
                                 int* code) {
  static unsigned uploads;
  uint64_t total = size_of_blobs(store);
  *code = EFBIG;
  if (bytes > store->limit_bytes) return NULL;
  while (total > store->limit_bytes - bytes)
    if (!remove_oldest(store, &total)) return NULL;
  agent_upload* const upload = malloc(sizeof(agent_upload));
  *code = ENOMEM;
  if (!upload) return NULL;
  *upload = (agent_upload){.store = store, .left = bytes};
  memcpy(upload->digest, digest, AGENT_DIGEST_BYTES);
  Sha256Begin(&upload->hash);
  snprintf(upload->path, sizeof(upload->path), "%s/work/upload-%d-%u", store->folder, (int)getpid(),
           uploads++);
  unlink(upload->path);
  // A library among the blobs must be executable where the loader asks for that.
  upload->file = open(upload->path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0700);
  *code = errno;
  if (upload->file >= 0) return upload;
  free(upload);
  return NULL;
}

int agent_upload_add(agent_upload* upload, const void* data, size_t bytes, int* code) {
  *code = EBADMSG;
  if (bytes > upload->left) return -1;
  Sha256Add(&upload->hash, data, bytes);
  upload->left -= bytes;
  for (const uint8_t* at = data; bytes > 0;) {
    const ssize_t put = write(upload->file, at, bytes);
    if (put < 0 && errno == EINTR) continue;
    *code = put < 0 ? errno : ENOSPC;
    if (put <= 0) return -1;
    at += put;
    bytes -= (size_t)put;
  }
  if (upload->left) return 0;
  uint8_t digest[AGENT_DIGEST_BYTES];
  char path[AGENT_MAX_PATH];
  Sha256End(&upload->hash, digest);
  *code = EBADMSG;
  if (memcmp(digest, upload->digest, sizeof(digest)) != 0) return -1;
  const int closed = close(upload->file);
  upload->file = -1;
  agent_blob_path(upload->store, digest, path);
  if (closed || rename(upload->path, path)) {
    *code = errno;
    return -1;
  }
  *code = ENOMEM;
  return keep(upload->store, digest) ? 1 : -1;
}

void agent_upload_end(agent_upload* upload) {
  if (!upload) return;
  if (upload->file >= 0) close(upload->file);
  // After a complete upload this name is gone.
  unlink(upload->path);
  free(upload);
}

void agent_remove_folder(const char* path) {
  DIR* const folder = opendir(path);
  if (folder) {
    for (const struct dirent* item; (item = readdir(folder)) != NULL;) {
      char inner[AGENT_MAX_PATH];
      struct stat info;
      if (!strcmp(item->d_name, ".") || !strcmp(item->d_name, "..")) continue;
      if (snprintf(inner, sizeof(inner), "%s/%s", path, item->d_name) >= (int)sizeof(inner))
        continue;
      if (!lstat(inner, &info) && S_ISDIR(info.st_mode))
        agent_remove_folder(inner);
      else
        unlink(inner);
    }
    closedir(folder);
  }
  rmdir(path);
}
