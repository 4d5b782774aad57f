// Streams, events, and the work on them, which runs when somebody waits for it.

#include <cstring>

#include "state.h"

namespace pretend {

namespace {

unsigned char* bytes(uint64_t address) { return reinterpret_cast<unsigned char*>(address); }

// Whether all bytes are shown and may be used.
bool is_device_memory(const State& s, uint64_t address, size_t size_bytes) {
  uint64_t at = address;
  while (at < address + size_bytes) {
    auto mapping = s.mappings.upper_bound(at);
    if (mapping == s.mappings.begin()) return false;
    --mapping;
    uint64_t end = mapping->first + mapping->second.size_bytes;
    if (end <= at || !mapping->second.is_allowed) return false;
    at = end;
  }
  return true;
}

void run(State& s, const Work& work) {
  // Nothing runs any more on a device that is lost; only who waits is let go.
  if (s.lost != SUCCESS && work.kind < Work::RECORD) return;
  size_t size_bytes = work.size_bytes;
  // Memory that went meanwhile: the device is lost, as a real one is.
  bool has_target = work.kind <= Work::FILL_WORDS;
  bool is_lost = has_target && !is_memory(s, work.target, size_bytes);
  if (work.kind == Work::COPY && !is_memory(s, work.source, size_bytes)) is_lost = true;
  if (is_lost) {
    s.lost = ILLEGAL_ADDRESS;
    return;
  }
  Opened opened;
  if (has_target) open_for_work(s, opened, work.target, size_bytes);
  if (work.kind == Work::COPY) open_for_work(s, opened, work.source, size_bytes);
  switch (work.kind) {
    case Work::COPY: memmove(bytes(work.target), bytes(work.source), size_bytes); break;
    case Work::PUT: memcpy(bytes(work.target), work.data.data(), size_bytes); break;
    case Work::FILL: memset(bytes(work.target), static_cast<int>(work.value), size_bytes); break;
    case Work::FILL_WORDS:
      for (size_t at = 0; at < size_bytes; at += 4) memcpy(bytes(work.target + at), &work.value, 4);
      break;
    case Work::PRODUCT: multiply(s, work); break;
    case Work::LAUNCH: launch(s, work); break;
    case Work::RECORD: {
      auto event = s.events.find(work.event);
      if (event != s.events.end()) event->second.done = work.ticket;
      break;
    }
    // What they wait for is there.
    case Work::EXCHANGE:
    case Work::WAIT: break;
  }
}

bool is_idle(const State& s, uint64_t stream) {
  auto queue = s.streams.find(stream);
  return queue == s.streams.end() || queue->second.empty();
}

// Does what an entry waits for. False if that cannot be done now.
bool is_ready(State& s, const Work& work) {
  if (work.kind == Work::EXCHANGE) return s.lost != SUCCESS || exchange(s, work.event);
  if (work.kind != Work::WAIT) return true;
  for (;;) {
    auto event = s.events.find(work.event);
    if (event == s.events.end() || event->second.done >= work.ticket) return true;
    if (!step(s, work.awaited)) return is_idle(s, work.awaited);
  }
}

// Some ten seconds.
const int PAUSES_MAX = 10000;

std::vector<uint64_t> busy(const State& s) {
  std::vector<uint64_t> streams;
  for (auto& [stream, queue] : s.streams) {
    if (!queue.empty()) streams.push_back(stream);
  }
  return streams;
}

// Where the order is drawn, streams get on a little now and then. Not often: work that runs as soon
// as it is enqueued hides what is not ordered.
void stray(State& s) {
  if (!s.is_drawn || s.order() % 16 != 0) return;
  for (uint64_t count = s.order() % 8; count > 0; count--) {
    std::vector<uint64_t> streams = busy(s);
    if (streams.empty()) return;
    step(s, streams[s.order() % streams.size()]);
  }
}

}  // namespace

bool step(State& s, uint64_t stream) {
  if (is_idle(s, stream)) return false;
  const Work::Kind kind = s.streams[stream].front().kind;
  if (kind == Work::EXCHANGE || kind == Work::WAIT) {
    // What it waits for may be on this stream's other side: it stays the first until it is done.
    Work work = s.streams[stream].front();
    if (!is_ready(s, work)) return false;
  }
  if (is_idle(s, stream)) return true;
  Work work = std::move(s.streams[stream].front());
  s.streams[stream].pop_front();
  run(s, work);
  return true;
}

bool is_memory(const State& s, uint64_t address, size_t size_bytes) {
  return is_device_memory(s, address, size_bytes) || is_locked(s, address, size_bytes);
}

int enqueue(State& s, uint64_t stream, Work work) {
  auto queue = s.streams.find(stream);
  if (queue == s.streams.end()) return INVALID_HANDLE;
  queue->second.push_back(std::move(work));
  stray(s);
  return SUCCESS;
}

void drain(State& s, uint64_t stream) {
  stray(s);
  for (int pauses = 0; !is_idle(s, stream);) {
    if (step(s, stream)) continue;
    // It waits for what another thread has still to say.
    if (++pauses == PAUSES_MAX) {
      s.lost = LAUNCH_FAILED;
      s.complaint = "a rank waits for a message that no other one sends or takes";
      continue;
    }
    let_others_call();
  }
}

void drain_all(State& s) {
  for (;;) {
    std::vector<uint64_t> streams = busy(s);
    if (streams.empty()) return;
    // The youngest stream first: what is not made to wait overtakes.
    if (s.is_drawn) {
      std::swap(streams[s.order() % streams.size()], streams.back());
    }
    // What waits for another rank stays.
    while (!streams.empty() && !step(s, streams.back())) streams.pop_back();
    if (streams.empty()) return;
  }
}

}  // namespace pretend

using namespace pretend;

ENTRY cuStreamCreate(uint64_t* stream, unsigned flags) {
  ENTER("cuStreamCreate");
  NEEDS_CONTEXT;
  const unsigned NON_BLOCKING = 1;
  if (flags != NON_BLOCKING) return NOT_SUPPORTED;
  *stream = s.next_name++;
  s.streams[*stream] = {};
  return SUCCESS;
}

ENTRY cuStreamDestroy_v2(uint64_t stream) {
  ENTER("cuStreamDestroy_v2");
  NEEDS_CONTEXT;
  if (s.streams.count(stream) == 0) return INVALID_HANDLE;
  // Its work is done before it goes, which is the driver's business and not the caller's.
  drain(s, stream);
  s.streams.erase(stream);
  return SUCCESS;
}

ENTRY cuStreamSynchronize(uint64_t stream) {
  ENTER("cuStreamSynchronize");
  NEEDS_CONTEXT;
  if (s.streams.count(stream) == 0) return INVALID_HANDLE;
  drain(s, stream);
  return s.lost;
}

ENTRY cuStreamWaitEvent(uint64_t stream, uint64_t event, unsigned flags) {
  ENTER("cuStreamWaitEvent");
  NEEDS_CONTEXT;
  if (flags != 0) return INVALID_VALUE;
  auto found = s.events.find(event);
  if (found == s.events.end()) return INVALID_HANDLE;
  Work work(Work::WAIT);
  work.event = event;
  work.ticket = found->second.recorded;
  work.awaited = found->second.stream;
  return enqueue(s, stream, std::move(work));
}

ENTRY cuEventCreate(uint64_t* event, unsigned) {
  ENTER("cuEventCreate");
  NEEDS_CONTEXT;
  *event = s.next_name++;
  s.events[*event] = {};
  return SUCCESS;
}

ENTRY cuEventDestroy_v2(uint64_t event) {
  ENTER("cuEventDestroy_v2");
  NEEDS_CONTEXT;
  auto found = s.events.find(event);
  if (found == s.events.end()) return INVALID_HANDLE;
  // Who waits for it goes on waiting for its work: run that now.
  while (found->second.done < found->second.recorded && step(s, found->second.stream)) {
  }
  s.events.erase(event);
  return SUCCESS;
}

ENTRY cuEventRecord(uint64_t event, uint64_t stream) {
  ENTER("cuEventRecord");
  NEEDS_CONTEXT;
  auto found = s.events.find(event);
  if (found == s.events.end() || s.streams.count(stream) == 0) return INVALID_HANDLE;
  found->second.recorded += 1;
  found->second.stream = stream;
  Work work(Work::RECORD);
  work.event = event;
  work.ticket = found->second.recorded;
  return enqueue(s, stream, std::move(work));
}

ENTRY cuMemcpyHtoDAsync_v2(uint64_t target, const void* source, size_t size_bytes,
                           uint64_t stream) {
  ENTER("cuMemcpyHtoDAsync_v2");
  NEEDS_CONTEXT;
  if (!is_device_memory(s, target, size_bytes)) return INVALID_VALUE;
  uint64_t from = reinterpret_cast<uint64_t>(source);
  Work work(Work::COPY);
  work.target = target;
  work.source = from;
  work.size_bytes = size_bytes;
  // Page-locked memory is read when the copy runs, other memory before the call returns.
  if (!is_locked(s, from, size_bytes)) {
    work.kind = Work::PUT;
    work.data.assign(bytes(from), bytes(from) + size_bytes);
  }
  return enqueue(s, stream, std::move(work));
}

ENTRY cuMemcpyDtoHAsync_v2(void* target, uint64_t source, size_t size_bytes, uint64_t stream) {
  ENTER("cuMemcpyDtoHAsync_v2");
  NEEDS_CONTEXT;
  if (!is_device_memory(s, source, size_bytes)) return INVALID_VALUE;
  uint64_t to = reinterpret_cast<uint64_t>(target);
  if (is_locked(s, to, size_bytes)) {
    Work work(Work::COPY);
    work.target = to;
    work.source = source;
    work.size_bytes = size_bytes;
    return enqueue(s, stream, std::move(work));
  }
  // Other memory is written before the call returns.
  if (s.streams.count(stream) == 0) return INVALID_HANDLE;
  drain(s, stream);
  if (s.lost != SUCCESS) return s.lost;
  Opened opened;
  opened.add(source, size_bytes);
  memcpy(target, bytes(source), size_bytes);
  return SUCCESS;
}

ENTRY cuMemcpyDtoDAsync_v2(uint64_t target, uint64_t source, size_t size_bytes, uint64_t stream) {
  ENTER("cuMemcpyDtoDAsync_v2");
  NEEDS_CONTEXT;
  if (!is_device_memory(s, target, size_bytes)) return INVALID_VALUE;
  if (!is_device_memory(s, source, size_bytes)) return INVALID_VALUE;
  Work work(Work::COPY);
  work.target = target;
  work.source = source;
  work.size_bytes = size_bytes;
  return enqueue(s, stream, std::move(work));
}

ENTRY cuMemsetD8Async(uint64_t target, unsigned char value, size_t size_bytes, uint64_t stream) {
  ENTER("cuMemsetD8Async");
  NEEDS_CONTEXT;
  if (!is_device_memory(s, target, size_bytes)) return INVALID_VALUE;
  Work work(Work::FILL);
  work.target = target;
  work.value = value;
  work.size_bytes = size_bytes;
  return enqueue(s, stream, std::move(work));
}

ENTRY cuMemsetD32Async(uint64_t target, unsigned value, size_t count, uint64_t stream) {
  ENTER("cuMemsetD32Async");
  NEEDS_CONTEXT;
  if (target % 4 != 0 || !is_device_memory(s, target, 4 * count)) return INVALID_VALUE;
  Work work(Work::FILL_WORDS);
  work.target = target;
  work.value = value;
  work.size_bytes = 4 * count;
  return enqueue(s, stream, std::move(work));
}
