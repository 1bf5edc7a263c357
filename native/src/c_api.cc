// The C interface over Communicator: argument by argument, and every exception turned into a code and a text.
#include <algorithm>
#include <cstring>

#include "clary/collectives.h"
#include "engine/communicator.hpp"
#include "reduce/kernels.hpp"

using clary::Code;
using clary::Collective;
using clary::Communicator;
using clary::Dtype;
using clary::Failure;
using clary::Operation;
using clary::ReduceOp;
using clary::Tickets;

struct clary_communicator {
  explicit clary_communicator(const clary_group& group) : it(group) {}
  Communicator it;
};

namespace {

int64_t tell(clary_failure* failure, Code code, int culprit, const char* text) {
  if (failure != nullptr) {
    failure->code = static_cast<int32_t>(code);
    failure->culprit = culprit;
    std::strncpy(failure->text, text, sizeof(failure->text) - 1);
    failure->text[sizeof(failure->text) - 1] = '\0';
  }
  return -static_cast<int64_t>(code);
}

// Runs `act` and turns what it throws into a code.
template <typename Act>
int64_t guarded(clary_failure* failure, Act act) {
  try {
    return act();
  } catch (const Failure& caught) {
    return tell(failure, caught.code, caught.culprit, caught.what());
  } catch (const std::exception& error) {
    return tell(failure, Code::kSystem, -1, error.what());
  }
}

Operation make(Collective kind, uint64_t count, int32_t dtype) {
  Operation operation;
  operation.kind = kind;
  operation.count = count;
  operation.dtype = static_cast<Dtype>(dtype);
  return operation;
}

int64_t begin(clary_communicator* communicator, Operation& operation, int32_t asynchronous, double timeout,
              clary_failure* failure) {
  return guarded(failure, [&] { return communicator->it.run(operation, asynchronous != 0, timeout); });
}

}  // namespace

#define CLARY_EXPORT extern "C" __attribute__((visibility("default")))

CLARY_EXPORT uint64_t clary_segment_bytes(int32_t ranks_on_host, uint64_t slot_bytes) {
  return clary::HostTeam::segmentBytes(ranks_on_host, slot_bytes);
}

CLARY_EXPORT const char* clary_instruction_set(void) { return clary::instructionSet(); }

CLARY_EXPORT clary_communicator* clary_create(const clary_group* group, clary_failure* failure) {
  clary_communicator* created = nullptr;
  guarded(failure, [&]() -> int64_t {
    if (group->abi_version != CLARY_ABI_VERSION) {
      throw Failure(Code::kInvalid, -1,
                    "the caller speaks version " + std::to_string(group->abi_version) +
                        " of this interface, the library " + std::to_string(CLARY_ABI_VERSION) +
                        ": build both from one tree");
    }
    created = new clary_communicator(*group);
    return 0;
  });
  return created;
}

CLARY_EXPORT void clary_destroy(clary_communicator* communicator) {
  // A forked process leaves its copy as it is: nothing of it can be ended there, see Communicator::isForked.
  if (communicator != nullptr && communicator->it.isForked()) return;
  delete communicator;
}

CLARY_EXPORT void clary_record(clary_communicator* communicator, void* rows, int32_t num_rows) {
  if (rows != nullptr && num_rows > 0) communicator->it.record(rows, num_rows);
}

CLARY_EXPORT void clary_abort(clary_communicator* communicator, const char* reason) {
  if (communicator->it.isForked()) return;
  communicator->it.abort(reason == nullptr ? "" : reason);
}

CLARY_EXPORT int64_t clary_all_reduce(clary_communicator* communicator, const void* input, void* output, uint64_t count,
                                      int32_t dtype, int32_t op, int32_t asynchronous, double timeout_s,
                                      clary_failure* failure) {
  Operation operation = make(Collective::kAllReduce, count, dtype);
  operation.input = input;
  operation.output = output;
  operation.op = static_cast<ReduceOp>(op);
  return begin(communicator, operation, asynchronous, timeout_s, failure);
}

CLARY_EXPORT int64_t clary_all_gather(clary_communicator* communicator, const void* input, void* output,
                                      void* const* outputs, uint64_t count, int32_t dtype, int32_t asynchronous,
                                      double timeout_s, clary_failure* failure) {
  Operation operation = make(Collective::kAllGather, count, dtype);
  operation.input = input;
  operation.output = output;
  operation.outputs = outputs;
  return begin(communicator, operation, asynchronous, timeout_s, failure);
}

CLARY_EXPORT int64_t clary_reduce_scatter(clary_communicator* communicator, const void* input,
                                          const void* const* inputs, void* output, uint64_t count, int32_t dtype,
                                          int32_t op, int32_t asynchronous, double timeout_s, clary_failure* failure) {
  Operation operation = make(Collective::kReduceScatter, count, dtype);
  operation.input = input;
  operation.inputs = inputs;
  operation.output = output;
  operation.op = static_cast<ReduceOp>(op);
  return begin(communicator, operation, asynchronous, timeout_s, failure);
}

CLARY_EXPORT int64_t clary_broadcast(clary_communicator* communicator, void* buffer, uint64_t count, int32_t dtype,
                                     int32_t root, int32_t asynchronous, double timeout_s, clary_failure* failure) {
  Operation operation = make(Collective::kBroadcast, count, dtype);
  operation.output = buffer;
  operation.root = root;
  return begin(communicator, operation, asynchronous, timeout_s, failure);
}

CLARY_EXPORT int64_t clary_reduce(clary_communicator* communicator, const void* input, void* output, uint64_t count,
                                  int32_t dtype, int32_t op, int32_t root, int32_t asynchronous, double timeout_s,
                                  clary_failure* failure) {
  Operation operation = make(Collective::kReduce, count, dtype);
  operation.input = input;
  operation.output = output;
  operation.op = static_cast<ReduceOp>(op);
  operation.root = root;
  return begin(communicator, operation, asynchronous, timeout_s, failure);
}

CLARY_EXPORT int64_t clary_all_to_all(clary_communicator* communicator, const void* input, const void* const* inputs,
                                      const uint64_t* send_counts, void* output, void* const* outputs,
                                      const uint64_t* receive_counts, uint64_t count, int32_t dtype,
                                      int32_t asynchronous, double timeout_s, clary_failure* failure) {
  Operation operation = make(Collective::kAllToAll, count, dtype);
  operation.input = input;
  operation.inputs = inputs;
  operation.sendCounts = send_counts;
  operation.output = output;
  operation.outputs = outputs;
  operation.receiveCounts = receive_counts;
  return begin(communicator, operation, asynchronous, timeout_s, failure);
}

CLARY_EXPORT int64_t clary_gather(clary_communicator* communicator, const void* input, void* output,
                                  void* const* outputs, uint64_t count, int32_t dtype, int32_t root,
                                  int32_t asynchronous, double timeout_s, clary_failure* failure) {
  Operation operation = make(Collective::kGather, count, dtype);
  operation.input = input;
  operation.output = output;
  operation.outputs = outputs;
  operation.root = root;
  return begin(communicator, operation, asynchronous, timeout_s, failure);
}

CLARY_EXPORT int64_t clary_scatter(clary_communicator* communicator, const void* input, const void* const* inputs,
                                   void* output, uint64_t count, int32_t dtype, int32_t root, int32_t asynchronous,
                                   double timeout_s, clary_failure* failure) {
  Operation operation = make(Collective::kScatter, count, dtype);
  operation.input = input;
  operation.inputs = inputs;
  operation.output = output;
  operation.root = root;
  return begin(communicator, operation, asynchronous, timeout_s, failure);
}

CLARY_EXPORT int64_t clary_barrier(clary_communicator* communicator, int32_t asynchronous, double timeout_s,
                                   clary_failure* failure) {
  Operation operation = make(Collective::kBarrier, 0, CLARY_UINT8);
  return begin(communicator, operation, asynchronous, timeout_s, failure);
}

CLARY_EXPORT int64_t clary_send(clary_communicator* communicator, const void* buffer, uint64_t bytes, int32_t peer,
                                int64_t tag, double timeout_s, clary_failure* failure) {
  return guarded(failure, [&] { return communicator->it.send(buffer, bytes, peer, tag, timeout_s); });
}

CLARY_EXPORT int64_t clary_receive(clary_communicator* communicator, void* buffer, uint64_t bytes, int32_t peer,
                                   int64_t tag, double timeout_s, clary_failure* failure) {
  return guarded(failure, [&] { return communicator->it.receive(buffer, bytes, peer, tag, timeout_s); });
}

CLARY_EXPORT int64_t clary_wait(clary_communicator* communicator, int64_t ticket, double limit_s, int32_t* source,
                                clary_failure* failure) {
  std::optional<clary::Duration> limit;
  if (limit_s >= 0) {
    limit = std::chrono::duration_cast<clary::Duration>(std::chrono::duration<double>(std::min(limit_s, 1e8)));
  }
  std::optional<Failure> caught;
  int from = 0;
  const int64_t isOurs = guarded(failure, [&]() -> int64_t {
    communicator->it.checkNotForked();
    return 0;
  });
  if (isOurs != 0) return isOurs;
  switch (communicator->it.tickets().wait(ticket, limit, &from, &caught)) {
    case Tickets::End::kNotYet:
      return tell(failure, Code::kTimeout, -1, "");
    case Tickets::End::kFailed:
      return tell(failure, caught->code, caught->culprit, caught->what());
    case Tickets::End::kGood:
      break;
  }
  if (source != nullptr) *source = from;
  return 0;
}

CLARY_EXPORT int32_t clary_is_done(clary_communicator* communicator, int64_t ticket) {
  return communicator->it.isForked() || communicator->it.tickets().isDone(ticket) ? 1 : 0;
}

CLARY_EXPORT void clary_watch(clary_communicator* communicator, int64_t ticket) {
  if (!communicator->it.isForked()) communicator->it.tickets().watch(ticket);
}

CLARY_EXPORT int64_t clary_next_watched(clary_communicator* communicator, double limit_s) {
  if (communicator->it.isForked()) return -1;
  const auto limit = std::chrono::duration<double>(std::clamp(limit_s, 0.0, 1e8));
  return communicator->it.tickets().nextWatched(std::chrono::duration_cast<clary::Duration>(limit));
}

CLARY_EXPORT void clary_explain(clary_communicator* communicator, int32_t collective, uint64_t bytes, char* text,
                                uint64_t capacity) {
  if (capacity == 0) return;
  const std::string line = communicator->it.explain(static_cast<Collective>(collective), bytes);
  std::strncpy(text, line.c_str(), capacity - 1);
  text[capacity - 1] = '\0';
}

CLARY_EXPORT int32_t clary_counters(clary_communicator* communicator, uint64_t* values, int32_t capacity) {
  const auto all = communicator->it.counters();
  const int32_t num = std::min(capacity, static_cast<int32_t>(all.size()));
  std::copy(all.begin(), all.begin() + num, values);
  return num;
}
