// Addresses, physical pages, what is shown where, and page-locked memory of the host.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "state.h"

namespace pretend {

namespace {

// Layouts of the driver's structures, as far as they are read.
struct Location {
  int type;
  int id;
};
struct Properties {
  int type;
  int handle_types;
  Location location;
};
struct Access {
  Location location;
  int flags;
};

const int DEVICE_LOCATION = 1;
const int READ_WRITE = 3;
const unsigned char POISON = 0xCD;

uint64_t round_up(uint64_t value, uint64_t step) { return (value + step - 1) / step * step; }

void* pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

// Addresses with nothing behind them, at a place of the system's choice or at this one.
void* nothing(void* at, size_t size_bytes) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at == nullptr ? 0 : MAP_FIXED);
  return mmap(at, size_bytes, PROT_NONE, flags, -1, 0);
}

// The device that a description names; -1 if it names none.
int device_of(const State& s, const Location& location) {
  bool is_device = location.type == DEVICE_LOCATION && location.id >= 0 &&
                   static_cast<size_t>(location.id) < s.devices.size();
  return is_device ? location.id : -1;
}

// Whether a range is made of whole mappings.
bool is_whole(const State& s, uint64_t address, size_t size_bytes) {
  uint64_t at = address;
  auto mapping = s.mappings.find(address);
  while (mapping != s.mappings.end() && mapping->first == at && at < address + size_bytes) {
    at += mapping->second.size_bytes;
    ++mapping;
  }
  return size_bytes > 0 && at == address + size_bytes;
}

bool is_reserved(const State& s, uint64_t address, size_t size_bytes) {
  auto range = s.ranges.upper_bound(address);
  if (range == s.ranges.begin()) return false;
  --range;
  uint64_t offset = address - range->first;
  size_t range_bytes = range->second.size_bytes;
  return offset <= range_bytes && size_bytes <= range_bytes - offset;
}

bool overlaps_mapping(const State& s, uint64_t address, size_t size_bytes) {
  auto mapping = s.mappings.lower_bound(address);
  if (mapping != s.mappings.end() && mapping->first < address + size_bytes) return true;
  if (mapping == s.mappings.begin()) return false;
  --mapping;
  return mapping->first + mapping->second.size_bytes > address;
}

}  // namespace

void settle(State& s, uint64_t handle) {
  auto found = s.handles.find(handle);
  if (found == s.handles.end() || found->second.is_owned || found->second.mappings > 0) return;
  Device& device = s.devices[static_cast<size_t>(found->second.device)];
  for (size_t page : found->second.pages) {
    device.used[page] = false;
    device.used_count -= 1;
    off_t offset = static_cast<off_t>(page * s.page_bytes);
    fallocate(device.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset,
              static_cast<off_t>(s.page_bytes));
  }
  s.handles.erase(found);
}

bool is_locked(const State& s, uint64_t address, size_t size_bytes) {
  auto block = s.host.upper_bound(address);
  if (block == s.host.begin()) return false;
  --block;
  return address + size_bytes <= block->first + block->second;
}

void open_for_work(const State& s, Opened& opened, uint64_t address, size_t size_bytes) {
  if (!is_locked(s, address, size_bytes)) opened.add(address, size_bytes);
}

}  // namespace pretend

using namespace pretend;

ENTRY cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  ENTER("cuMemGetInfo_v2");
  NEEDS_CONTEXT;
  const Device& device = s.devices[current() - 1];
  size_t used = used_bytes(s, device);
  *total_bytes = device.capacity_bytes;
  *free_bytes = used < device.capacity_bytes ? device.capacity_bytes - used : 0;
  return SUCCESS;
}

ENTRY cuMemGetAllocationGranularity(size_t* page_bytes, const Properties* properties, unsigned) {
  ENTER("cuMemGetAllocationGranularity");
  if (device_of(s, properties->location) < 0) return INVALID_VALUE;
  *page_bytes = s.page_bytes;
  return SUCCESS;
}

ENTRY cuMemAddressReserve(uint64_t* address, size_t size_bytes, size_t align_bytes, uint64_t,
                          unsigned long long flags) {
  ENTER("cuMemAddressReserve");
  if (size_bytes == 0 || size_bytes % s.page_bytes != 0 || flags != 0) return INVALID_VALUE;
  size_t step = align_bytes > s.page_bytes ? align_bytes : s.page_bytes;
  // A page more on each side: what lies beside the range is not to be touched.
  size_t guarded_bytes = size_bytes + 3 * step;
  void* start = nothing(nullptr, guarded_bytes);
  if (start == MAP_FAILED) return OUT_OF_MEMORY;
  uint64_t first = reinterpret_cast<uint64_t>(start);
  uint64_t chosen = round_up(first + step, step);
  s.ranges[chosen] = Range{size_bytes, first, guarded_bytes};
  *address = chosen;
  return SUCCESS;
}

ENTRY cuMemAddressFree(uint64_t address, size_t size_bytes) {
  ENTER("cuMemAddressFree");
  auto range = s.ranges.find(address);
  if (range == s.ranges.end() || range->second.size_bytes != size_bytes) return INVALID_VALUE;
  if (overlaps_mapping(s, address, size_bytes)) return INVALID_VALUE;
  munmap(pointer(range->second.guarded_start), range->second.guarded_bytes);
  s.ranges.erase(range);
  return SUCCESS;
}

ENTRY cuMemCreate(uint64_t* handle, size_t size_bytes, const Properties* properties,
                  unsigned long long flags) {
  ENTER("cuMemCreate");
  int index = device_of(s, properties->location);
  if (index < 0 || properties->type != 1 || flags != 0) return INVALID_VALUE;
  if (size_bytes == 0 || size_bytes % s.page_bytes != 0) return INVALID_VALUE;
  Device& device = s.devices[static_cast<size_t>(index)];
  if (used_bytes(s, device) + size_bytes > device.capacity_bytes) return OUT_OF_MEMORY;
  Physical physical{index, {}, 0, true};
  std::vector<unsigned char> poison(s.page_bytes, POISON);
  for (size_t page = 0; physical.pages.size() < size_bytes / s.page_bytes; page++) {
    if (page == device.used.size()) return OUT_OF_MEMORY;
    if (device.used[page]) continue;
    off_t offset = static_cast<off_t>(page * s.page_bytes);
    if (pwrite(device.file, poison.data(), s.page_bytes, offset) < 0) return OUT_OF_MEMORY;
    physical.pages.push_back(page);
  }
  for (size_t page : physical.pages) device.used[page] = true;
  device.used_count += physical.pages.size();
  *handle = s.next_name++;
  s.handles[*handle] = physical;
  return SUCCESS;
}

ENTRY cuMemRelease(uint64_t handle) {
  ENTER("cuMemRelease");
  auto physical = s.handles.find(handle);
  if (physical == s.handles.end() || !physical->second.is_owned) return INVALID_VALUE;
  physical->second.is_owned = false;
  settle(s, handle);
  return SUCCESS;
}

ENTRY cuMemMap(uint64_t address, size_t size_bytes, size_t offset, uint64_t handle,
               unsigned long long flags) {
  ENTER("cuMemMap");
  auto found = s.handles.find(handle);
  if (found == s.handles.end() || !found->second.is_owned) return INVALID_VALUE;
  Physical& physical = found->second;
  bool is_all = offset == 0 && size_bytes == physical.pages.size() * s.page_bytes;
  if (!is_all || flags != 0 || address % s.page_bytes != 0) return INVALID_VALUE;
  if (!is_reserved(s, address, size_bytes)) return INVALID_VALUE;
  if (overlaps_mapping(s, address, size_bytes)) return INVALID_VALUE;
  int file = s.devices[static_cast<size_t>(physical.device)].file;
  uint64_t at = address;
  for (size_t page : physical.pages) {
    void* shown = mmap(pointer(at), s.page_bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, file,
                       static_cast<off_t>(page * s.page_bytes));
    if (shown == MAP_FAILED) return OUT_OF_MEMORY;
    at += s.page_bytes;
  }
  physical.mappings += 1;
  s.mappings[address] = Mapping{size_bytes, handle, false};
  close_bytes(address, size_bytes);
  return SUCCESS;
}

ENTRY cuMemUnmap(uint64_t address, size_t size_bytes) {
  ENTER("cuMemUnmap");
  // Work that is queued is not waited for: it finds nothing there.
  if (!is_whole(s, address, size_bytes)) return INVALID_VALUE;
  nothing(pointer(address), size_bytes);
  open_bytes(address, size_bytes);
  for (uint64_t at = address; at < address + size_bytes;) {
    Mapping gone = s.mappings[at];
    s.mappings.erase(at);
    s.handles[gone.handle].mappings -= 1;
    settle(s, gone.handle);
    at += gone.size_bytes;
  }
  return SUCCESS;
}

ENTRY cuMemSetAccess(uint64_t address, size_t size_bytes, const Access* access, size_t count) {
  ENTER("cuMemSetAccess");
  if (count != 1 || device_of(s, access->location) < 0) return INVALID_VALUE;
  if (access->flags != READ_WRITE || !is_whole(s, address, size_bytes)) return INVALID_VALUE;
  if (mprotect(pointer(address), size_bytes, PROT_READ | PROT_WRITE) != 0) return INVALID_VALUE;
  for (uint64_t at = address; at < address + size_bytes; at += s.mappings[at].size_bytes) {
    s.mappings[at].is_allowed = true;
  }
  return SUCCESS;
}

ENTRY cuMemHostAlloc(void** block, size_t size_bytes, unsigned) {
  ENTER("cuMemHostAlloc");
  NEEDS_CONTEXT;
  if (size_bytes == 0) return INVALID_VALUE;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* memory = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (memory == MAP_FAILED) return OUT_OF_MEMORY;
  s.host[reinterpret_cast<uint64_t>(memory)] = size_bytes;
  *block = memory;
  return SUCCESS;
}

ENTRY cuMemFreeHost(void* block) {
  ENTER("cuMemFreeHost");
  NEEDS_CONTEXT;
  auto found = s.host.find(reinterpret_cast<uint64_t>(block));
  if (found == s.host.end()) return INVALID_VALUE;
  drain_all(s);
  munmap(block, found->second);
  s.host.erase(found);
  return SUCCESS;
}
