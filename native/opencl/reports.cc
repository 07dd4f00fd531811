#include "reports.h"

#include "devices.h"
#include "json_writer.h"
#include "program_cache.h"

namespace tvmflow::opencl {
namespace {

void Write(JsonWriter* json, const Device& device) {
  const DeviceInfo& info = device.info();
  const tf_device& core = *device.core();
  json->BeginObject();
  json->Key("index").Number(device.index());
  json->Key("name").Text(info.name);
  json->Key("vendor").Text(info.vendor);
  json->Key("type").Text(tf_device_type(&core));
  json->Key("platform").Text(info.platform);
  json->Key("platform_version").Text(info.platform_version);
  json->Key("library").Text(info.library);
  json->Key("version").Text(info.version);
  json->Key("opencl_c_version").Text(info.opencl_c_version);
  json->Key("driver").Text(info.driver_version);
  json->Key("compute_units").Number(info.compute_units);
  json->Key("clock_mhz").Number(info.clock_mhz);
  json->Key("native_vector_width_float").Number(info.native_vector_width_float);
  json->Key("max_work_group").Number(core.largest_group);
  json->Key("max_work_items").BeginArray();
  for (size_t extent : core.largest_local) json->Number(extent);
  json->EndArray();
  json->Key("local_memory_bytes").Number(info.local_memory_bytes);
  json->Key("global_cache_bytes").Number(info.global_cache_bytes);
  json->Key("global_memory_bytes").Number(core.memory_bytes);
  json->Key("max_allocation_bytes").Number(core.largest_allocation);
  json->Key("images").Bool(core.largest_image[0] != 0);
  json->Key("image_max_width").Number(core.largest_image[0]);
  json->Key("image_max_height").Number(core.largest_image[1]);
  json->Key("image_max_array").Number(core.largest_image[2]);
  json->Key("image_pitch_alignment").Number(info.image_pitch_alignment);
  json->Key("image2d_from_buffer").Bool(info.Has("cl_khr_image2d_from_buffer"));
  json->Key("fp16").Bool(info.Has("cl_khr_fp16"));
  json->Key("extensions").BeginArray();
  for (const std::string& extension : info.extensions) json->Text(extension);
  json->EndArray().EndObject();
}

void WriteExtents(JsonWriter* json, const size_t* extents, cl_uint dimensions) {
  json->BeginArray();
  for (cl_uint i = 0; i < dimensions; ++i) json->Number(extents[i]);
  json->EndArray();
}

}  // namespace

std::string DescribeDevices() {
  JsonWriter json;
  json.BeginArray();
  Devices& devices = Devices::Global();
  for (size_t i = 0; i < devices.Count(); ++i) Write(&json, devices.Get(static_cast<int>(i)));
  return json.EndArray().str();
}

std::string DescribeTimes(const std::vector<KernelTime>& times) {
  JsonWriter json;
  json.BeginArray();
  for (const KernelTime& time : times) {
    json.BeginObject().Key("kernel").Text(time.kernel);
    json.Key("start_us").Real(time.start_us).Key("us").Real(time.us);
    WriteExtents(&json.Key("global"), time.size.global, time.size.dimensions);
    WriteExtents(&json.Key("local"), time.size.local, time.size.dimensions);
    json.EndObject();
  }
  return json.EndArray().str();
}

std::string DescribeCache() {
  const CacheStatistics statistics = GlobalCacheStatistics();
  JsonWriter json;
  json.BeginObject();
  json.Key("hits").Number(statistics.hits).Key("misses").Number(statistics.misses);
  json.Key("rebuilt").Number(statistics.rebuilt).Key("stored").Number(statistics.stored);
  return json.EndObject().str();
}

}  // namespace tvmflow::opencl
