// Modules, kernels and launches. An image is PTX as a real driver takes it: the names of its kernels
// and what they take are read from it, and compared with the library of kernels that were compiled
// for the processor from the same source. Its instructions are not looked at. An image may also
// stand for the file beside the driver, which then has to be of the same source; in one that no
// compiler for devices has made there are names alone.

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "state.h"

namespace pretend {

namespace {

uint64_t round_up(uint64_t value, uint64_t step) { return (value + step - 1) / step * step; }

struct Library {
  FindKernel find = nullptr;
  RunKernel run = nullptr;
};

// The folder of this library.
std::string own_folder() {
  Dl_info self;
  if (dladdr(reinterpret_cast<void*>(&round_up), &self) == 0) return std::string();
  std::string path(self.dli_fname);
  path.resize(path.rfind('/') + 1);
  return path;
}

// The library beside this one, loaded when it is first asked for.
const Library& library() {
  static Library* library = nullptr;
  if (library != nullptr) return *library;
  library = new Library;
  void* opened = dlopen((own_folder() + "kernels.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) return *library;
  library->find = reinterpret_cast<FindKernel>(dlsym(opened, "pretend_kernel"));
  library->run = reinterpret_cast<RunKernel>(dlsym(opened, "pretend_run"));
  return *library;
}

size_t size_of(const std::string& type) {
  size_t digits = type.find_first_of("0123456789");
  return digits == std::string::npos ? 0 : strtoul(type.c_str() + digits, nullptr, 10) / 8;
}

// Reads `.param .u64 name` or `.param .align 8 .b8 name[136]`.
Parameter read_parameter(const std::string& text, size_t end) {
  char word[64];
  Parameter parameter{0, 0};
  size_t align = 0, at = 0;
  while (sscanf(text.c_str() + at, " %63[^] \t\n,[]", word) == 1) {
    at = text.find(word, at) + strlen(word);
    if (strcmp(word, ".align") == 0) {
      align = strtoul(text.c_str() + at, nullptr, 10);
    } else if (word[0] == '.' && size_of(word) != 0) {
      parameter.size_bytes = size_of(word);
    } else if (text[at] == '[') {
      parameter.size_bytes *= strtoul(text.c_str() + at + 1, nullptr, 10);
      break;
    }
  }
  parameter.offset = round_up(end, align == 0 ? parameter.size_bytes : align);
  return parameter;
}

Entry read_entry(const std::string& ptx, size_t at) {
  Entry entry;
  size_t open = ptx.find('(', at), close = ptx.find(')', at), body = ptx.find('{', at);
  size_t name = ptx.find_first_not_of(" \t", at);
  entry.name = ptx.substr(name, ptx.find_first_of(" \t(", name) - name);
  size_t end = 0;
  for (size_t from = ptx.find(".param", open); from < close; from = ptx.find(".param", from + 1)) {
    size_t comma = std::min(ptx.find(',', from), close);
    entry.parameters.push_back(read_parameter(ptx.substr(from, comma - from), end));
    end = entry.parameters.back().offset + entry.parameters.back().size_bytes;
  }
  entry.argument_bytes = end;
  size_t limit = ptx.find(".maxntid", close);
  if (limit < body) {
    unsigned x = 1, y = 1, z = 1;
    sscanf(ptx.c_str() + limit, ".maxntid %u, %u, %u", &x, &y, &z);
    entry.threads_max = x * y * z;
  }
  return entry;
}

// As the library has it.
void take_parameters(Entry& entry) {
  const Kernel& kernel = *entry.kernel;
  for (size_t i = 0; i < kernel.parameter_count; i++) {
    entry.parameters.push_back(Parameter{kernel.offsets[i], kernel.sizes[i]});
    entry.argument_bytes = kernel.offsets[i] + kernel.sizes[i];
  }
}

// Whether the library has it as the image says.
bool is_same(const Entry& entry, const Kernel& kernel) {
  bool is_same = kernel.parameter_count == entry.parameters.size();
  for (size_t i = 0; is_same && i < entry.parameters.size(); i++) {
    is_same = kernel.offsets[i] == entry.parameters[i].offset &&
              kernel.sizes[i] == entry.parameters[i].size_bytes;
  }
  return is_same;
}

// What is in the file that an image stands for, or in itself. The first line names the source.
bool follow(const std::string& image, std::string& ptx) {
  const std::string mark = "// stands for ";
  size_t at = image.find(mark);
  if (at == std::string::npos) {
    ptx = image;
    return true;
  }
  size_t name = at + mark.size(), end = image.find('\n', name);
  bool is_read = read_beside(image.substr(name, end - name) + ".ptx", ptx);
  return is_read && ptx.compare(0, at, image, 0, at) == 0;
}

int read_image(const std::string& image, Module& module, std::string& log) {
  std::string ptx;
  if (!follow(image, ptx)) {
    log = "there is nothing of this source beside the pretend driver";
    return INVALID_PTX;
  }
  bool has_names_alone = ptx.find("// parameters of the source\n") != std::string::npos;
  if (ptx.find(".version") == std::string::npos || ptx.find(".target") == std::string::npos) {
    log = "ptxas fatal: the image has no .version and .target";
    return INVALID_PTX;
  }
  if (library().run == nullptr) {
    log = "there is no library of kernels beside the pretend driver";
    return NOT_SUPPORTED;
  }
  const std::string mark = ".entry";
  for (size_t at = ptx.find(mark); at != std::string::npos; at = ptx.find(mark, at + 1)) {
    Entry entry = read_entry(ptx, at + mark.size());
    entry.kernel = library().find(entry.name.c_str());
    if (has_names_alone && entry.kernel != nullptr) take_parameters(entry);
    if (entry.kernel == nullptr || !is_same(entry, *entry.kernel)) {
      log = entry.name + (entry.kernel == nullptr ? " is not in the library of kernels"
                                                  : " takes something else in its source");
      return INVALID_PTX;
    }
    module.entries.push_back(entry);
  }
  return SUCCESS;
}

// Writes what an image is refused for where the caller wants it.
void write_log(const std::string& log, unsigned count, const int* options, void** values) {
  const int BUFFER = 5, BUFFER_BYTES = 6;
  char* buffer = nullptr;
  size_t size_bytes = 0;
  for (unsigned i = 0; i < count; i++) {
    if (options[i] == BUFFER) buffer = static_cast<char*>(values[i]);
    if (options[i] == BUFFER_BYTES) size_bytes = reinterpret_cast<uint64_t>(values[i]) & 0xffffffff;
  }
  if (buffer != nullptr) snprintf(buffer, size_bytes, "%s", log.c_str());
}

Entry* entry_of(State& s, uint64_t function) {
  for (auto& [name, module] : s.modules) {
    for (Entry& entry : module.entries) {
      if (reinterpret_cast<uint64_t>(&entry) == function) return &entry;
    }
  }
  return nullptr;
}

// Arguments one behind the other; nothing if there are too few or too many.
bool gather(const Entry& entry, void** pointers, void** extra, std::vector<unsigned char>& into) {
  into.resize(entry.argument_bytes);
  if (extra == nullptr) {
    for (size_t i = 0; i < entry.parameters.size(); i++) {
      const Parameter& parameter = entry.parameters[i];
      memcpy(into.data() + parameter.offset, pointers[i], parameter.size_bytes);
    }
    return true;
  }
  const uint64_t BUFFER = 1, BUFFER_BYTES = 2;
  const void* buffer = nullptr;
  size_t size_bytes = 0;
  for (; *extra != nullptr; extra += 2) {
    uint64_t kind = reinterpret_cast<uint64_t>(extra[0]);
    if (kind == BUFFER) buffer = extra[1];
    if (kind == BUFFER_BYTES) size_bytes = *static_cast<size_t*>(extra[1]);
  }
  if (size_bytes != entry.argument_bytes) return false;
  if (size_bytes > 0) memcpy(into.data(), buffer, size_bytes);
  return true;
}

bool fits(const Entry& entry, const unsigned* blocks, const unsigned* threads, unsigned shared) {
  uint64_t count = uint64_t(threads[0]) * threads[1] * threads[2];
  bool has_blocks = blocks[0] > 0 && blocks[0] <= 0x7fffffff && blocks[1] > 0 &&
                    blocks[1] <= 0xffff && blocks[2] > 0 && blocks[2] <= 0xffff;
  return has_blocks && count > 0 && count <= entry.threads_max && threads[2] <= 64 &&
         shared <= entry.shared_bytes_max;
}

}  // namespace

bool read_beside(const std::string& name, std::string& text) {
  std::ifstream file(own_folder() + name);
  std::stringstream contents;
  contents << file.rdbuf();
  text = contents.str();
  return file.good();
}

void launch(State& s, const Work& work) {
  const Started& started = *work.launch;
  Launch launch{};
  launch.kernel = started.kernel;
  memcpy(launch.blocks, started.blocks, sizeof launch.blocks);
  memcpy(launch.threads, started.threads, sizeof launch.threads);
  launch.shared_bytes = started.shared_bytes;
  launch.arguments = started.arguments.data();
  launch.order = s.thread_order;
  std::vector<Extent> extents = started.extents;
  if (!started.has_extents) {
    // Nobody said what it may use: all that there is, written in any order.
    for (auto& [address, mapping] : s.mappings) {
      if (mapping.is_allowed) extents.push_back(Extent{address, mapping.size_bytes, 2});
    }
    for (auto& [address, size_bytes] : s.host) extents.push_back(Extent{address, size_bytes, 2});
  }
  for (const Extent& extent : started.extents) {
    if (!is_memory(s, extent.address, extent.size_bytes)) {
      s.lost = ILLEGAL_ADDRESS;
      s.complaint = std::string(started.kernel->name) + ": memory that is gone";
      return;
    }
  }
  launch.extents = extents.data();
  launch.extent_count = extents.size();
  Opened opened;
  for (const Extent& extent : extents) {
    open_for_work(s, opened, extent.address, extent.size_bytes);
  }
  char complaint[512] = "";
  int code = library().run(&launch, complaint, sizeof complaint);
  if (code != SUCCESS) {
    s.lost = code;
    s.complaint = complaint;
  }
}

}  // namespace pretend

using namespace pretend;

ENTRY cuModuleLoadDataEx(uint64_t* module, const void* image, unsigned count, int* options,
                         void** values) {
  ENTER("cuModuleLoadDataEx");
  NEEDS_CONTEXT;
  std::string ptx(static_cast<const char*>(image));
  std::string log;
  // Code for one architecture is for no other, and for no device that does not name its own.
  std::string own = CODE_MARK + ("sm_" + std::to_string(s.capability)) + "\n";
  if (ptx.rfind(CODE_MARK, 0) == 0 && ptx.rfind(own, 0) != 0) return NO_BINARY_FOR_GPU;
  Device& device = s.devices[current() - 1];
  if (used_bytes(s, device) + s.load_bytes > device.capacity_bytes) return OUT_OF_MEMORY;
  Module read;
  int code = read_image(ptx, read, log);
  if (code != SUCCESS) {
    write_log(log, count, options, values);
    return code;
  }
  *module = s.next_name++;
  s.modules[*module] = std::move(read);
  return SUCCESS;
}

ENTRY cuModuleUnload(uint64_t module) {
  ENTER("cuModuleUnload");
  NEEDS_CONTEXT;
  // Launches that are queued do not hold it: what the caller has to see to.
  for (auto& [stream, queue] : s.streams) {
    for (const Work& work : queue) {
      if (work.kind == Work::LAUNCH && work.launch->module == module) s.lost = LAUNCH_FAILED;
    }
  }
  return s.modules.erase(module) == 1 ? SUCCESS : INVALID_HANDLE;
}

ENTRY cuModuleGetFunction(uint64_t* function, uint64_t module, const char* name) {
  ENTER("cuModuleGetFunction");
  NEEDS_CONTEXT;
  auto found = s.modules.find(module);
  if (found == s.modules.end()) return INVALID_HANDLE;
  for (Entry& entry : found->second.entries) {
    if (entry.name != name) continue;
    entry.module = module;
    *function = reinterpret_cast<uint64_t>(&entry);
    return SUCCESS;
  }
  return NOT_FOUND;
}

ENTRY cuFuncGetParamInfo(uint64_t function, size_t index, size_t* offset, size_t* size_bytes) {
  ENTER("cuFuncGetParamInfo");
  const Entry* entry = entry_of(s, function);
  if (entry == nullptr) return INVALID_HANDLE;
  if (index >= entry->parameters.size()) return INVALID_VALUE;
  *offset = entry->parameters[index].offset;
  *size_bytes = entry->parameters[index].size_bytes;
  return SUCCESS;
}

// Registers and memory are the device compiler's business: 0, but for the launch's own limits.
ENTRY cuFuncGetAttribute(int* value, int attribute, uint64_t function) {
  ENTER("cuFuncGetAttribute");
  NEEDS_CONTEXT;
  const Entry* entry = entry_of(s, function);
  if (entry == nullptr) return INVALID_HANDLE;
  const int THREADS_MAX = 0, SHARED_BYTES_MAX = 8;
  *value = 0;
  if (attribute == THREADS_MAX) *value = static_cast<int>(entry->threads_max);
  if (attribute == SHARED_BYTES_MAX) *value = static_cast<int>(entry->shared_bytes_max);
  return SUCCESS;
}

ENTRY cuFuncSetAttribute(uint64_t function, int attribute, int value) {
  ENTER("cuFuncSetAttribute");
  NEEDS_CONTEXT;
  Entry* entry = entry_of(s, function);
  if (entry == nullptr) return INVALID_HANDLE;
  const int SHARED_BYTES_MAX = 8, SHARED_BYTES_OF_DEVICE = 227 << 10;
  if (attribute != SHARED_BYTES_MAX || value < 0 || value > SHARED_BYTES_OF_DEVICE) {
    return INVALID_VALUE;
  }
  entry->shared_bytes_max = static_cast<size_t>(value);
  return SUCCESS;
}

ENTRY cuLaunchKernel(uint64_t function, unsigned bx, unsigned by, unsigned bz, unsigned tx,
                     unsigned ty, unsigned tz, unsigned shared, uint64_t stream, void** pointers,
                     void** extra) {
  std::vector<Extent> extents;
  bool has_extents = take_extents(extents);
  ENTER("cuLaunchKernel");
  NEEDS_CONTEXT;
  const Entry* entry = entry_of(s, function);
  if (entry == nullptr || s.streams.count(stream) == 0) return INVALID_HANDLE;
  auto started = std::make_shared<Started>();
  *started = Started{entry->kernel, entry->module, {bx, by, bz}, {tx, ty, tz}, shared, {},
                     std::move(extents), has_extents};
  if (!fits(*entry, started->blocks, started->threads, shared)) return INVALID_VALUE;
  if (!gather(*entry, pointers, extra, started->arguments)) return INVALID_VALUE;
  Work work(Work::LAUNCH);
  work.launch = std::move(started);
  return enqueue(s, stream, std::move(work));
}
