// SPDX-License-Identifier: Apache-2.0
// Functions of a library that is opened at run time, for several models in one program.
//
// All libraries of `tvmflow compile --standalone` have functions of the same names.  A program
// that is linked to one library calls them as `tvmflow.h` declares them.  A program that uses
// several, or gets its model later, looks them up in each library:
//
//   tvmflow_library net;
//   const char* reason = tvmflow_library_open(&net, "./libmobilenet.so");
//   if (reason) return puts(reason);
//   net.create(NULL, &model);
#ifndef TVMFLOW_LIBRARY_H
#define TVMFLOW_LIBRARY_H

#include <dlfcn.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tvmflow.h"

#define TVMFLOW_EACH_FUNCTION(X)                                                                   \
  X(api_version)                                                                                   \
  X(create)                                                                                        \
  X(destroy)                                                                                       \
  X(message)                                                                                       \
  X(describe)                                                                                      \
  X(input_count)                                                                                   \
  X(output_count)                                                                                  \
  X(input)                                                                                         \
  X(output)                                                                                        \
  X(set_input)                                                                                     \
  X(get_output)                                                                                    \
  X(use_input)                                                                                     \
  X(use_output)                                                                                    \
  X(run)                                                                                           \
  X(start)                                                                                         \
  X(wait)                                                                                          \
  X(profile)                                                                                       \
  X(self_test)                                                                                     \
  X(self_test_with)                                                                                \
  X(test_report)                                                                                   \
  X(tune)                                                                                          \
  X(tune_wait)                                                                                     \
  X(tune_report)                                                                                   \
  X(shape_count)                                                                                   \
  X(shape)                                                                                         \
  X(choose_shape)                                                                                  \
  X(set_shape)                                                                                     \
  X(backend_used)                                                                                  \
  X(image_input)                                                                                   \
  X(set_image)                                                                                     \
  X(image_place)                                                                                   \
  X(find_input)                                                                                    \
  X(find_output)                                                                                   \
  X(opencl)                                                                                        \
  X(memory)                                                                                        \
  X(run_async)                                                                                     \
  X(cancel)                                                                                        \
  X(warm_up)                                                                                       \
  X(status_name)                                                                                   \
  X(output_data)

// Functions of a library; `create` is its `tvmflow_create`, and so on.
typedef struct tvmflow_library {
  void* handle;
#define TVMFLOW_MEMBER(name) __typeof__(&tvmflow_##name) name;
  TVMFLOW_EACH_FUNCTION(TVMFLOW_MEMBER)
#undef TVMFLOW_MEMBER
} tvmflow_library;

// Unloads a library; all of its models must have been destroyed.
static inline void tvmflow_library_close(tvmflow_library* library) {
  if (library->handle != NULL) dlclose(library->handle);
  memset(library, 0, sizeof(*library));
}

// Returns whether a file is shorter than its loadable segments: glibc's loader would then end the
// process, while Android's returns an error.  Returns 0 if that is unknown.
static inline int tvmflow_library_is_cut_short(const char* path) {
  Elf64_Ehdr header;
  Elf64_Phdr segment;
  char last;
  unsigned i;
  int cut = 0;
  // The loader does not search this folder for a bare name.
  FILE* const file = strchr(path, '/') != NULL ? fopen(path, "rb") : NULL;
  if (file == NULL) return 0;
  if (fread(&header, sizeof(header), 1, file) == 1 &&
      memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 && header.e_ident[EI_CLASS] == ELFCLASS64) {
    for (i = 0; i < header.e_phnum && !cut; ++i) {
      cut = fseek(file, (long)(header.e_phoff + i * sizeof(segment)), SEEK_SET) != 0 ||
            fread(&segment, sizeof(segment), 1, file) != 1;
      if (!cut && segment.p_type == PT_LOAD && segment.p_filesz != 0)
        cut = fseek(file, (long)(segment.p_offset + segment.p_filesz - 1), SEEK_SET) != 0 ||
              fread(&last, 1, 1, file) != 1;
    }
  }
  fclose(file);
  return cut;
}

#ifdef __GLIBC__
// Returns a spelling of a path that is unique to its file; the caller frees it.  Before the last
// name, `/./` and `//` are the bits of device and inode, which no other file can have while this
// one is loaded.
static inline char* tvmflow_library_own_name(const char* path, const struct stat* file) {
  const char* const last = strrchr(path, '/');
  unsigned long long device = file->st_dev;
  unsigned long long inode = file->st_ino;
  const size_t folder = (size_t)(last - path);
  char* const name = (char*)malloc(strlen(path) + 4 * 64 + 1);
  char* end = name;
  if (name == NULL) return NULL;
  memcpy(end, path, folder);
  end += folder;
  for (; device != 0 || inode != 0; device >>= 1, inode >>= 1) {
    *end++ = '/';
    *end++ = (device & 1) != 0 ? '.' : '/';
    *end++ = '/';
    *end++ = (inode & 1) != 0 ? '.' : '/';
  }
  memcpy(end, last, strlen(last) + 1);
  return name;
}
#endif

// Opens the current file at a path, even if an earlier file of this path is still open: glibc's
// `dlopen` would return that, as it compares names, while other loaders compare files.
static inline void* tvmflow_library_load(const char* path) {
#ifdef __GLIBC__
  struct stat before;
  struct stat after;
  // For a bare name the loader searches its folders and the loaded libraries.
  while (strchr(path, '/') != NULL && stat(path, &before) == 0) {
    char* const name = tvmflow_library_own_name(path, &before);
    void* const named = name != NULL ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    void* own;
    if (named == NULL) {
      free(name);
      return NULL;
    }
    own = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
    dlclose(named);
    if (own == NULL) own = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    free(name);
    if (own == NULL) return NULL;
    if (stat(path, &after) != 0 || (before.st_dev == after.st_dev && before.st_ino == after.st_ino))
      return own;
    // The file was replaced meanwhile, and either of the two may be open.
    dlclose(own);
  }
#endif
  return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

// Returns whether the loader misses a symbol of TVM's runtime, which modules need.
static inline int tvmflow_library_needs_tvm(const char* message) {
  return message != NULL && (strstr(message, "TVMFFI") || strstr(message, "TVMBackend"));
}

#define TVMFLOW_IS_A_MODULE                                                                        \
  "it is a module for TVM's runtime, not a standalone library: compile it with --standalone"

// Opens a library.  Returns NULL, or the reason of the failure, after which nothing needs to be
// closed; the text is valid until the thread's next call of `dlopen` or a related function.
static inline const char* tvmflow_library_open(tvmflow_library* library, const char* path) {
  const char* missing = NULL;
  struct stat kind;
  void* symbol;
  memset(library, 0, sizeof(*library));
  // Opening a FIFO would block.
  if (strchr(path, '/') != NULL && stat(path, &kind) == 0 && !S_ISREG(kind.st_mode))
    return "it is no regular file";
  if (tvmflow_library_is_cut_short(path)) return "it was cut short: copy it again";
  library->handle = tvmflow_library_load(path);
  if (library->handle == NULL) {
    missing = dlerror();
    if (missing == NULL) return "there is no memory for its name";
    return tvmflow_library_needs_tvm(missing) ? TVMFLOW_IS_A_MODULE : missing;
  }
  // ISO C does not allow converting dlsym's result to a function pointer, but copying it.
#define TVMFLOW_TAKE(name)                                                                         \
  symbol = dlsym(library->handle, "tvmflow_" #name);                                               \
  if (symbol == NULL && missing == NULL) missing = "the library has no function tvmflow_" #name;   \
  memcpy(&library->name, &symbol, sizeof(symbol));
  TVMFLOW_EACH_FUNCTION(TVMFLOW_TAKE)
#undef TVMFLOW_TAKE
  // The loader accepts a module for TVM's runtime in a program that has that runtime.
  if (missing != NULL && dlsym(library->handle, "__tvm_ffi__library_bin") != NULL)
    missing = TVMFLOW_IS_A_MODULE;
  if (missing == NULL && library->api_version() < TVMFLOW_API_VERSION)
    missing = "the library was compiled by an older tvmflow than the one of this program's headers";
  if (missing != NULL) tvmflow_library_close(library);
  return missing;
}

#endif
