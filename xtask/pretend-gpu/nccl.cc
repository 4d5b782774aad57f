// NCCL: messages between devices, of ranks that are threads of this process.
//
// A group is an entry of its stream's queue. It is done once all of its messages are, each of which
// is copied when the streams of both ranks have come to it.

#include <cstring>

#include "state.h"

namespace pretend {

namespace {

// Values of `ncclResult_t`.
const int DONE = 0, CUDA_ERROR = 1, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6,
          IN_PROGRESS = 7;

struct Id {
  uint64_t clique;
  unsigned char rest[120];
};

// `ncclConfig_t` of 2.18, which later versions only add to.
struct Config {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
  int cluster_size;
  int blocks_min;
  int blocks_max;
  const char* network;
  int shares;
};

// What the calling thread has said since its group began.
thread_local int depth = 0;
thread_local std::vector<NcclMessage> said;

NcclRank* rank_of(State& s, uint64_t name) {
  auto found = s.nccl_ranks.find(name);
  return found == s.nccl_ranks.end() ? nullptr : &found->second;
}

// The queue of messages from one rank to another, of those who give or of those who take.
std::vector<NcclSide>& sides(NcclClique& clique, int from, int to, bool is_given) {
  return clique.sides[{from, to, is_given}];
}

// Whether the stream of a group has come to it, once it has done what is before it.
bool comes_to(State& s, uint64_t group) {
  uint64_t stream = s.nccl_groups.at(group).stream;
  for (;;) {
    auto queue = s.streams.find(stream);
    if (queue == s.streams.end() || queue->second.empty()) return false;
    const Work& front = queue->second.front();
    if (front.kind == Work::EXCHANGE && front.event == group) return true;
    if (!step(s, stream)) return false;
  }
}

int say(State& s, NcclMessage message, size_t count, int type) {
  NcclRank* rank = rank_of(s, message.rank);
  if (rank == nullptr || !has_context(s) || rank->device != static_cast<int>(current()) - 1) {
    return INVALID_ARGUMENT;
  }
  NcclClique& clique = s.nccl_cliques.at(rank->clique);
  bool is_whole = static_cast<int>(clique.devices.size()) == clique.count;
  if (!is_whole || clique.error != DONE || rank->is_over) return INVALID_USAGE;
  const int BYTES = 1;
  bool is_other = message.peer >= 0 && message.peer < clique.count && message.peer != rank->index;
  if (type != BYTES || !is_other || !is_memory(s, message.address, count)) return INVALID_ARGUMENT;
  // Outside of a group, one that gives waits for one that takes: only groups are pretended.
  if (depth == 0) return INVALID_USAGE;
  message.size_bytes = count;
  said.push_back(message);
  return DONE;
}

}  // namespace

bool exchange(State& s, uint64_t name) {
  NcclGroup& group = s.nccl_groups.at(name);
  // It waits for itself.
  if (group.is_running) return false;
  group.is_running = true;
  bool is_done = true;
  for (NcclMessage& message : group.messages) {
    NcclRank& rank = s.nccl_ranks.at(message.rank);
    NcclClique& clique = s.nccl_cliques.at(rank.clique);
    if (clique.error != DONE) break;
    int from = message.is_given ? rank.index : message.peer;
    int to = message.is_given ? message.peer : rank.index;
    NcclSide& own = sides(clique, from, to, message.is_given)[message.nth];
    if (own.is_done) continue;
    auto& others = sides(clique, from, to, !message.is_given);
    if (others.size() <= message.nth || !comes_to(s, others[message.nth].group)) {
      is_done = false;
      break;
    }
    NcclSide& other = others[message.nth];
    const NcclSide &source = message.is_given ? own : other, &target = message.is_given ? other : own;
    if (!is_memory(s, source.address, own.size_bytes) ||
        !is_memory(s, target.address, own.size_bytes)) {
      s.lost = ILLEGAL_ADDRESS;
      break;
    }
    Opened opened;
    open_for_work(s, opened, source.address, own.size_bytes);
    open_for_work(s, opened, target.address, own.size_bytes);
    memmove(reinterpret_cast<void*>(target.address), reinterpret_cast<void*>(source.address),
            own.size_bytes);
    own.is_done = other.is_done = true;
  }
  group.is_running = false;
  return is_done;
}

}  // namespace pretend

using namespace pretend;

#define ENTER_NCCL(function)                               \
  pretend::Guard guard(function, pretend::Guard::NOTHING); \
  pretend::State& s = guard.state;                         \
  (void)s;                                                 \
  if (guard.is_over) return guard.code

ENTRY ncclGetVersion(int* version) {
  ENTER_NCCL("ncclGetVersion");
  *version = 22800;
  return DONE;
}

ENTRY ncclGetUniqueId(Id* id) {
  ENTER_NCCL("ncclGetUniqueId");
  *id = Id{};
  id->clique = s.next_name++;
  s.nccl_cliques[id->clique] = {};
  return DONE;
}

ENTRY ncclCommInitRankConfig(uint64_t* name, int count, Id id, int index, const Config* config) {
  ENTER_NCCL("ncclCommInitRankConfig");
  auto found = s.nccl_cliques.find(id.clique);
  if (config->size < sizeof(Config) || config->magic != 0xcafebeef || config->version < 21800 ||
      found == s.nccl_cliques.end() || index < 0 || index >= count) {
    return INVALID_ARGUMENT;
  }
  // Waiting in a call is not pretended.
  if (config->blocking != 0 || !has_context(s)) return INVALID_USAGE;
  NcclClique& clique = found->second;
  int number = static_cast<int>(current()) - 1;
  Device& device = s.devices[number];
  if (used_bytes(s, device) + s.load_bytes > device.capacity_bytes) return CUDA_ERROR;
  *name = s.next_name++;
  NcclRank rank;
  rank.clique = id.clique;
  rank.index = index;
  rank.device = number;
  s.nccl_ranks[*name] = rank;
  // Two ranks on one device, or of one number, or another count: all hear of it.
  for (auto& [other, of] : clique.devices) {
    if (other == index || of == number) clique.error = INVALID_USAGE;
  }
  if (clique.count != 0 && clique.count != count) clique.error = INVALID_USAGE;
  clique.count = count;
  clique.devices[index] = number;
  return IN_PROGRESS;
}

ENTRY ncclCommGetAsyncError(uint64_t name, int* error) {
  ENTER_NCCL("ncclCommGetAsyncError");
  NcclRank* rank = rank_of(s, name);
  if (rank == nullptr) return INVALID_ARGUMENT;
  NcclClique& clique = s.nccl_cliques.at(rank->clique);
  bool is_whole = static_cast<int>(clique.devices.size()) == clique.count;
  *error = clique.error != DONE ? clique.error : is_whole ? DONE : IN_PROGRESS;
  return DONE;
}

ENTRY ncclCommFinalize(uint64_t name) {
  ENTER_NCCL("ncclCommFinalize");
  NcclRank* rank = rank_of(s, name);
  if (rank == nullptr || rank->is_over) return INVALID_ARGUMENT;
  rank->is_over = true;
  return DONE;
}

ENTRY ncclCommDestroy(uint64_t name) {
  ENTER_NCCL("ncclCommDestroy");
  NcclRank* rank = rank_of(s, name);
  if (rank == nullptr || !rank->is_over) return INVALID_ARGUMENT;
  // Its groups keep what they need of it.
  rank->is_destroyed = true;
  return DONE;
}

ENTRY ncclCommAbort(uint64_t name) {
  ENTER_NCCL("ncclCommAbort");
  NcclRank* rank = rank_of(s, name);
  if (rank == nullptr || rank->is_destroyed) return INVALID_ARGUMENT;
  rank->is_over = rank->is_destroyed = true;
  NcclClique& clique = s.nccl_cliques.at(rank->clique);
  if (clique.error == DONE) clique.error = REMOTE_ERROR;
  return DONE;
}

ENTRY ncclGroupStart() {
  ENTER_NCCL("ncclGroupStart");
  depth += 1;
  return DONE;
}

ENTRY ncclSend(uint64_t address, size_t count, int type, int peer, uint64_t rank, uint64_t stream) {
  ENTER_NCCL("ncclSend");
  return say(s, NcclMessage{rank, stream, peer, true, address, 0, 0}, count, type);
}

ENTRY ncclRecv(uint64_t address, size_t count, int type, int peer, uint64_t rank, uint64_t stream) {
  ENTER_NCCL("ncclRecv");
  return say(s, NcclMessage{rank, stream, peer, false, address, 0, 0}, count, type);
}

ENTRY ncclGroupEnd() {
  // Whatever becomes of the call, the group is over.
  std::vector<NcclMessage> messages;
  if (depth > 0 && --depth == 0) messages.swap(said);
  ENTER_NCCL("ncclGroupEnd");
  if (messages.empty()) return DONE;
  uint64_t name = s.next_name++, stream = messages[0].stream;
  for (NcclMessage& message : messages) {
    NcclRank& rank = s.nccl_ranks.at(message.rank);
    NcclClique& clique = s.nccl_cliques.at(rank.clique);
    if (message.stream != stream) {
      clique.error = INVALID_USAGE;
      return INVALID_USAGE;
    }
    int from = message.is_given ? rank.index : message.peer;
    int to = message.is_given ? message.peer : rank.index;
    auto& own = sides(clique, from, to, message.is_given);
    auto& others = sides(clique, from, to, !message.is_given);
    message.nth = own.size();
    own.push_back(NcclSide{name, message.address, message.size_bytes, false});
    // A real one hangs, or reads what is not there.
    if (message.nth < others.size() && others[message.nth].size_bytes != message.size_bytes) {
      clique.error = INVALID_USAGE;
      return INVALID_USAGE;
    }
  }
  s.nccl_groups[name] = NcclGroup{stream, messages, false};
  Work work(Work::EXCHANGE);
  work.event = name;
  return enqueue(s, stream, std::move(work)) == SUCCESS ? DONE : INVALID_ARGUMENT;
}
