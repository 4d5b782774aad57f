// Devices, contexts, the guard of every call, and the controls.

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "state.h"

namespace pretend {

namespace {

State& the_state() {
  static State* state = [] {
    tell([](const char*) { abort(); });
    return new State;  // never destroyed: calls may come from any exit handler
  }();
  return *state;
}

std::recursive_mutex& the_lock() {
  static auto* lock = new std::recursive_mutex;
  return *lock;
}

thread_local std::vector<uint64_t> contexts;

// Of the thread's next launch.
thread_local std::vector<Extent> told;
thread_local bool has_told = false;

// Whether an armed fault strikes, which counts it down.
bool strikes(Fault& fault) {
  if (fault.nth == 0) return false;
  if (fault.nth > 1) {
    fault.nth -= 1;
    return false;
  }
  if (!fault.is_forever) fault.nth = 0;
  return true;
}

const int DEVICES = 4;

void open_devices(State& state, size_t capacity_bytes) {
  for (int index = 0; index < DEVICES; index++) {
    Device device;
    device.capacity_bytes = capacity_bytes;
    device.file = memfd_create("pretend-gpu", MFD_CLOEXEC);
    if (device.file < 0 || ftruncate(device.file, static_cast<off_t>(capacity_bytes)) != 0) {
      fprintf(stderr, "pretend-gpu: no memory of %zu bytes\n", capacity_bytes);
    }
    device.used.resize(capacity_bytes / state.page_bytes);
    state.devices.push_back(device);
  }
}

}  // namespace

Guard::Guard(const char* function, Needs needs) : state(the_state()), lock_(the_lock()) {
  if (state.devices.empty()) open_devices(state, 64 << 20);
  state.calls[function] += 1;
  for (const char* name : {function, ""}) {
    auto fault = state.faults.find(name);
    if (fault != state.faults.end() && strikes(fault->second)) {
      code = fault->second.code;
      is_over = true;
      return;
    }
  }
  if (needs == NOTHING) return;
  if (!state.is_initialised && strcmp(function, "cuInit") != 0) code = NOT_INITIALIZED;
  if (state.lost != SUCCESS) code = state.lost;
  is_over = code != SUCCESS;
}

void let_others_call() {
  the_lock().unlock();
  usleep(1000);
  the_lock().lock();
}

size_t used_bytes(const State& state, const Device& device) {
  size_t context_bytes = device.retained > 0 ? state.context_bytes : 0;
  size_t loaded = state.modules.size();
  for (auto& [name, part] : state.blas_parts) loaded += part.kind == BlasPart::HANDLE;
  // Nothing is loaded on any device but the first.
  if (&device == &state.devices.front()) context_bytes += loaded * state.load_bytes;
  return device.used_count * state.page_bytes + device.taken_bytes + context_bytes;
}

bool take_extents(std::vector<Extent>& extents) {
  extents = std::move(told);
  told.clear();
  return std::exchange(has_told, false);
}

uint64_t current() { return contexts.empty() ? 0 : contexts.back(); }

bool has_context(const State& state) {
  uint64_t context = current();
  return context != 0 && context <= state.devices.size() &&
         state.devices[context - 1].retained > 0;
}

}  // namespace pretend

using namespace pretend;

ENTRY cuInit(unsigned flags) {
  ENTER("cuInit");
  if (flags != 0) return INVALID_VALUE;
  s.is_initialised = true;
  return SUCCESS;
}

ENTRY cuDriverGetVersion(int* version) {
  ENTER("cuDriverGetVersion");
  *version = s.driver_version;
  return SUCCESS;
}

ENTRY cuGetErrorName(int code, const char** name) {
  switch (code) {
    case SUCCESS: *name = "CUDA_SUCCESS"; break;
    case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case NOT_INITIALIZED: *name = "CUDA_ERROR_NOT_INITIALIZED"; break;
    case INVALID_DEVICE: *name = "CUDA_ERROR_INVALID_DEVICE"; break;
    case INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; break;
    case INVALID_PTX: *name = "CUDA_ERROR_INVALID_PTX"; break;
    case INVALID_HANDLE: *name = "CUDA_ERROR_INVALID_HANDLE"; break;
    case NOT_FOUND: *name = "CUDA_ERROR_NOT_FOUND"; break;
    case ILLEGAL_ADDRESS: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; break;
    case MISALIGNED_ADDRESS: *name = "CUDA_ERROR_MISALIGNED_ADDRESS"; break;
    case LAUNCH_FAILED: *name = "CUDA_ERROR_LAUNCH_FAILED"; break;
    case NO_BINARY_FOR_GPU: *name = "CUDA_ERROR_NO_BINARY_FOR_GPU"; break;
    case NOT_SUPPORTED: *name = "CUDA_ERROR_NOT_SUPPORTED"; break;
    default: *name = nullptr; return INVALID_VALUE;
  }
  return SUCCESS;
}

ENTRY cuGetErrorString(int code, const char** text) { return cuGetErrorName(code, text); }

ENTRY cuDeviceGetCount(int* count) {
  ENTER("cuDeviceGetCount");
  *count = static_cast<int>(s.devices.size());
  return SUCCESS;
}

ENTRY cuDeviceGet(int* device, int ordinal) {
  ENTER("cuDeviceGet");
  if (ordinal < 0 || static_cast<size_t>(ordinal) >= s.devices.size()) return INVALID_DEVICE;
  *device = ordinal;
  return SUCCESS;
}

ENTRY cuDeviceGetName(char* name, int len, int) {
  ENTER("cuDeviceGetName");
  snprintf(name, static_cast<size_t>(len), "pretend GPU");
  return SUCCESS;
}

ENTRY cuDeviceGetAttribute(int* value, int attribute, int) {
  ENTER("cuDeviceGetAttribute");
  const int CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76;
  const int VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102;
  *value = 0;
  if (attribute == CAPABILITY_MAJOR) *value = s.capability / 10;
  if (attribute == CAPABILITY_MINOR) *value = s.capability % 10;
  if (attribute == VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) *value = 1;
  return SUCCESS;
}

ENTRY cuDevicePrimaryCtxRetain(uint64_t* context, int device) {
  ENTER("cuDevicePrimaryCtxRetain");
  Device& own = s.devices.at(static_cast<size_t>(device));
  if (own.retained == 0 && used_bytes(s, own) + s.context_bytes > own.capacity_bytes) {
    return OUT_OF_MEMORY;
  }
  own.retained += 1;
  *context = static_cast<uint64_t>(device) + 1;
  return SUCCESS;
}

ENTRY cuDevicePrimaryCtxRelease_v2(int device) {
  ENTER("cuDevicePrimaryCtxRelease_v2");
  Device& own = s.devices.at(static_cast<size_t>(device));
  if (own.retained == 0) return INVALID_CONTEXT;
  own.retained -= 1;
  return SUCCESS;
}

ENTRY cuCtxGetCurrent(uint64_t* context) {
  ENTER("cuCtxGetCurrent");
  *context = current();
  return SUCCESS;
}

ENTRY cuCtxSetCurrent(uint64_t context) {
  ENTER("cuCtxSetCurrent");
  if (!contexts.empty()) contexts.pop_back();
  if (context != 0) contexts.push_back(context);
  return SUCCESS;
}

ENTRY cuCtxPushCurrent_v2(uint64_t context) {
  ENTER("cuCtxPushCurrent_v2");
  contexts.push_back(context);
  return SUCCESS;
}

ENTRY cuCtxPopCurrent_v2(uint64_t* context) {
  ENTER("cuCtxPopCurrent_v2");
  if (contexts.empty()) return INVALID_CONTEXT;
  *context = contexts.back();
  contexts.pop_back();
  return SUCCESS;
}

ENTRY cuCtxSynchronize() {
  ENTER("cuCtxSynchronize");
  NEEDS_CONTEXT;
  drain_all(s);
  return s.lost;
}

#define CONTROL extern "C" __attribute__((visibility("default")))

CONTROL void pretend_reset(uint64_t capacity_bytes, uint64_t page_bytes, uint64_t context_bytes) {
  std::unique_lock<std::recursive_mutex> lock(the_lock());
  State& s = the_state();
  for (auto& [address, mapping] : s.mappings) open_bytes(address, mapping.size_bytes);
  for (auto& [address, range] : s.ranges) {
    munmap(reinterpret_cast<void*>(range.guarded_start), range.guarded_bytes);
  }
  for (auto& [address, size_bytes] : s.host) munmap(reinterpret_cast<void*>(address), size_bytes);
  for (Device& device : s.devices) close(device.file);
  bool is_initialised = s.is_initialised;
  s = State();
  s.is_initialised = is_initialised;
  s.page_bytes = page_bytes;
  s.context_bytes = context_bytes;
  open_devices(s, capacity_bytes);
}

CONTROL uint64_t pretend_calls(const char* function) {
  std::unique_lock<std::recursive_mutex> lock(the_lock());
  uint64_t count = 0;
  for (auto& [name, calls] : the_state().calls) {
    if (*function == 0 || name == function) count += calls;
  }
  return count;
}

CONTROL void pretend_fail(const char* function, int code, uint64_t nth, int is_forever) {
  std::unique_lock<std::recursive_mutex> lock(the_lock());
  the_state().faults[function] = Fault{code, nth, is_forever != 0};
}

CONTROL void pretend_capability(uint64_t capability) {
  std::unique_lock<std::recursive_mutex> lock(the_lock());
  the_state().capability = static_cast<int>(capability);
}

CONTROL void pretend_driver_version(uint64_t version) {
  std::unique_lock<std::recursive_mutex> lock(the_lock());
  the_state().driver_version = static_cast<int>(version);
}

CONTROL void pretend_load_bytes(uint64_t size_bytes) {
  std::unique_lock<std::recursive_mutex> lock(the_lock());
  the_state().load_bytes = size_bytes;
}

CONTROL void pretend_schedule(uint64_t seed) {
  std::unique_lock<std::recursive_mutex> lock(the_lock());
  the_state().is_drawn = seed != 0;
  the_state().order.seed(seed);
}

CONTROL void pretend_threads(uint64_t order) {
  std::unique_lock<std::recursive_mutex> lock(the_lock());
  the_state().thread_order = order;
}

CONTROL int pretend_extents(const Extent* extents, size_t count) {
  told.assign(extents, extents + count);
  has_told = true;
  return SUCCESS;
}

CONTROL void pretend_complaint(char* text, size_t size_bytes) {
  std::unique_lock<std::recursive_mutex> lock(the_lock());
  snprintf(text, size_bytes, "%s", the_state().complaint.c_str());
}

CONTROL void pretend_take(uint64_t bytes) {
  std::unique_lock<std::recursive_mutex> lock(the_lock());
  the_state().devices.at(0).taken_bytes = bytes;
}

CONTROL uint64_t pretend_live(const char* what) {
  std::unique_lock<std::recursive_mutex> lock(the_lock());
  State& s = the_state();
  std::string name(what);
  if (name == "handles") return s.handles.size();
  if (name == "mappings") return s.mappings.size();
  if (name == "ranges") return s.ranges.size();
  if (name == "host") return s.host.size();
  if (name == "streams") return s.streams.size();
  if (name == "events") return s.events.size();
  if (name == "modules") return s.modules.size();
  if (name == "blas") return s.blas_parts.size();
  if (name == "programs") return s.programs.size();
  if (name == "bytes") return used_bytes(s, s.devices.at(0));
  uint64_t count = 0;
  for (Device& device : s.devices) {
    if (name == "contexts") count += static_cast<uint64_t>(device.retained);
  }
  for (auto& [stream, queue] : s.streams) {
    if (name == "queued") count += queue.size();
  }
  return count;
}
