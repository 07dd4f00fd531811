#include "program_cache.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "host_processor.h"
#include "settings.h"

namespace tvmflow::opencl {
namespace {

// Must be incremented when the layout below or the meaning of an entry changes.
constexpr uint32_t kFormat = 1;
constexpr char kMagic[8] = {'T', 'V', 'M', 'F', 'L', 'O', 'W', 'P'};
constexpr const char* kSuffix = ".program";
constexpr const char* kTemporaryPrefix = "tmp-";
// Age at which a temporary file is stale: its writer has died.
constexpr time_t kStaleSeconds = 3600;

struct Header {
  char magic[8];
  uint32_t format;
  uint32_t reserved;
  Digest key;
  uint64_t bytes;
  Digest checksum;  // of the binary after the header
};
static_assert(sizeof(Header) == 88);

std::atomic<uint64_t> hits{0}, misses{0}, rebuilt{0}, stored{0};

class File {
 public:
  // Creates a new file; fails if there is any file or link of this name.
  static File New(const std::string& path) {
    return File(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  }
  // Opens a regular file only: opening a FIFO would wait for a writer, and a device could act.
  static File Regular(const std::string& path) {
    struct stat status{};
    if (stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return File(-1);
    return File(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  }
  ~File() { Close(); }
  File(const File&) = delete;
  bool IsOpen() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  bool Close() {
    const bool ok = descriptor_ < 0 || close(descriptor_) == 0;
    descriptor_ = -1;
    return ok;
  }
  bool Read(void* data, size_t bytes) {
    char* position = static_cast<char*>(data);
    while (bytes > 0) {
      const ssize_t got = read(descriptor_, position, bytes);
      if (got <= 0) return false;
      position += got;
      bytes -= static_cast<size_t>(got);
    }
    return true;
  }
  bool Write(const void* data, size_t bytes) {
    const char* position = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t put = write(descriptor_, position, bytes);
      if (put <= 0) return false;
      position += put;
      bytes -= static_cast<size_t>(put);
    }
    return true;
  }

 private:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

std::string Folder() {
  const Settings settings = CurrentSettings();
  return settings.cache_enabled ? settings.cache_folder : "";
}

// Creates the folder and its parents, accessible to this user only.
bool MakeFolder(const std::string& path) {
  for (size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    mkdir(path.substr(0, slash).c_str(), 0700);
    if (slash == std::string::npos) break;
  }
  struct stat status{};
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

// Returns whether this user owns the file and nobody else can write to it: an entry contains
// machine code that this process will run.
bool IsTrusted(const struct stat& status) {
  return S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
         (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// Returns the identity of the driver's own library, even if a loader opened it, because updates
// of a driver do not always change its version.
std::string LibraryIdentity(const Device& device) {
  Dl_info info{};
  const Platform& platform = device.platform();
  void** dispatch = platform.has_tables ? platform.id->dispatch : nullptr;
  const void* address = dispatch ? dispatch[3] : nullptr;
  if (!address) address = reinterpret_cast<const void*>(device.api().clGetDeviceInfo);
  if (!address || !dladdr(address, &info) || !info.dli_fname) return "";
  struct stat status{};
  if (stat(info.dli_fname, &status) != 0) return "";
  return std::to_string(status.st_size) + "," + std::to_string(status.st_mtim.tv_sec) + "," +
         std::to_string(status.st_mtim.tv_nsec);
}

struct Entry {
  std::string path;
  uint64_t bytes;
  time_t used;
};

// Lists the entries and removes stale temporary files.
std::vector<Entry> ListEntries(const std::string& folder) {
  std::vector<Entry> entries;
  DIR* directory = opendir(folder.c_str());
  if (!directory) return entries;
  const time_t now = time(nullptr);
  while (const dirent* item = readdir(directory)) {
    const std::string name = item->d_name;
    const std::string path = folder + "/" + name;
    struct stat status{};
    if (lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    if (name.rfind(kTemporaryPrefix, 0) == 0) {
      if (now - status.st_mtime > kStaleSeconds) unlink(path.c_str());
    } else if (name.size() > 8 && name.compare(name.size() - 8, 8, kSuffix) == 0) {
      entries.push_back({path, static_cast<uint64_t>(status.st_size), status.st_mtime});
    }
  }
  closedir(directory);
  return entries;
}

// Trims the folder to nine tenths of its limit, so that not every store has to remove entries.
void Trim(const std::string& folder, uint64_t limit_bytes, const std::string& keep) {
  std::vector<Entry> entries = ListEntries(folder);
  uint64_t total = 0;
  for (const Entry& entry : entries) total += entry.bytes;
  if (total <= limit_bytes) return;
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.used < b.used; });
  for (const Entry& entry : entries) {
    if (total <= limit_bytes / 10 * 9) break;
    if (entry.path == keep) continue;
    if (unlink(entry.path.c_str()) == 0) total -= entry.bytes;
  }
}

}  // namespace

Digest ProgramKey(const Device& device, const std::string& source, const std::string& options) {
  const DeviceInfo& info = device.info();
  Sha256 hash;
  hash.Field(std::to_string(kFormat)).Field(source).Field(options);
  hash.Field(info.name).Field(info.vendor).Field(info.version).Field(info.driver_version);
  hash.Field(device.platform().name).Field(device.platform().version);
  hash.Field(LibraryIdentity(device));
  hash.Field(info.type & CL_DEVICE_TYPE_CPU ? HostProcessorIdentity() : "");
  return hash.Finish();
}

CacheStatistics GlobalCacheStatistics() { return {hits, misses, rebuilt, stored}; }
void CountCacheHit() { ++hits; }
void CountCacheRefusal() { ++rebuilt; }

std::optional<std::vector<unsigned char>> LoadBinary(const Digest& key) {
  const Settings settings = CurrentSettings();
  const std::string folder = Folder();
  if (folder.empty()) return std::nullopt;
  const std::string path = folder + "/" + Hex(key) + kSuffix;
  File file = File::Regular(path);
  if (!file.IsOpen()) {
    ++misses;
    return std::nullopt;
  }
  struct stat status{};
  Header header;
  std::vector<unsigned char> binary;
  bool sound =
      fstat(file.descriptor(), &status) == 0 && IsTrusted(status) &&
      static_cast<size_t>(status.st_size) > sizeof(header) && file.Read(&header, sizeof(header)) &&
      std::memcmp(header.magic, kMagic, sizeof(kMagic)) == 0 && header.format == kFormat &&
      header.reserved == 0 && header.key == key && header.bytes <= settings.cache_limit_bytes &&
      header.bytes == static_cast<uint64_t>(status.st_size) - sizeof(header);
  if (sound) {
    binary.resize(header.bytes);
    sound = file.Read(binary.data(), binary.size()) &&
            Sha256().Update(binary.data(), binary.size()).Finish() == header.checksum;
  }
  if (!sound) {
    ++rebuilt;
    return std::nullopt;
  }
  // Record the time of the last use, by which entries are removed.
  futimens(file.descriptor(), nullptr);
  return binary;
}

void StoreBinary(const Digest& key, const std::vector<unsigned char>& binary) {
  const std::string folder = Folder();
  const Settings settings = CurrentSettings();
  if (folder.empty() || binary.empty() || binary.size() > settings.cache_limit_bytes) return;
  if (!MakeFolder(folder)) return;
  static std::atomic<uint64_t> counter{0};
  const std::string path = folder + "/" + Hex(key) + kSuffix;
  const std::string temporary = folder + "/" + kTemporaryPrefix + Hex(key).substr(0, 16) + "-" +
                                std::to_string(getpid()) + "-" + std::to_string(counter++);
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.format = kFormat;
  header.key = key;
  header.bytes = binary.size();
  header.checksum = Sha256().Update(binary.data(), binary.size()).Finish();
  {
    File file = File::New(temporary);
    if (!file.IsOpen()) return;
    const bool written = file.Write(&header, sizeof(header)) &&
                         file.Write(binary.data(), binary.size()) && file.Close();
    if (!written || rename(temporary.c_str(), path.c_str()) != 0) {
      unlink(temporary.c_str());
      return;
    }
  }
  ++stored;
  Trim(folder, settings.cache_limit_bytes, path);
}

}  // namespace tvmflow::opencl
