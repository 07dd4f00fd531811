// Blobs: files in the agent's folder, named after the SHA-256 of their content.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { AGENT_DIGEST_BYTES = 32, AGENT_MAX_PATH = 1024 };

typedef struct agent_store {
  char folder[AGENT_MAX_PATH - 256];  // has the folders `blobs`, `work` and `cache`
  uint64_t limit_bytes;               // of all blobs
  // Digests of blobs that this connection uses, which are not removed.
  uint8_t (*used)[AGENT_DIGEST_BYTES];
  size_t used_count;
} agent_store;

// A blob that is being received.
typedef struct agent_upload agent_upload;

// Both create the folders, and return 0 or an errno.
int agent_store_open(agent_store* store, const char* folder, uint64_t limit_bytes);
int agent_store_make_folders(const agent_store* store);
// Returns whether the blob is there, and keeps it as long as the connection uses the store.
bool agent_blob_use(agent_store* store, const uint8_t* digest);
void agent_blob_path(const agent_store* store, const uint8_t* digest, char path[AGENT_MAX_PATH]);
// Maps a blob into memory, read-only; NULL: there is none, or no memory.  A blob of 0 bytes has an
// address that must not be read.
const void* agent_blob_map(const agent_store* store, const uint8_t* digest, size_t* bytes);
void agent_blob_unmap(const void* data, size_t bytes);

// Begins to receive a blob, after removing others for its size.  NULL: `code` is an errno, or
// EFBIG: it does not fit into the limit beside the blobs in use.
agent_upload* agent_upload_begin(agent_store* store, const uint8_t* digest, uint64_t bytes,
                                 int* code);
// Adds bytes.  Returns 0; 1 when the blob is complete; -1: `code` is an errno, or EBADMSG: the
// content has another digest or is longer than announced.
int agent_upload_add(agent_upload* upload, const void* data, size_t bytes, int* code);
// Ends an upload, and removes what was not complete.
void agent_upload_end(agent_upload* upload);

// Removes a folder with everything in it; links are removed, not followed.
void agent_remove_folder(const char* path);
