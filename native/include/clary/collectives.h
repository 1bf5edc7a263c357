// The C interface of Clary's collectives: the one door into the core, for every framework and every Python.
//
// Nothing here names a framework. Connections are made by the caller (src/clary/train/collective/bootstrap) and handed
// over as file descriptors, which the communicator owns from then on. Memory is named by address and element count.
//
// Threads: calls on one communicator may come from any thread; operations run in the order of their calls, one at a
// time. Every rank of a group must issue the same sequence of collectives; a rank that does not is told so.
//
// Processes: a communicator is of the process that made it. In one that was forked from there its sockets are closed,
// operations fail with CLOSED, and clary_destroy and clary_abort do nothing.
#ifndef CLARY_COLLECTIVES_H
#define CLARY_COLLECTIVES_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CLARY_ABI_VERSION 1

enum clary_dtype {
  CLARY_FLOAT32 = 0,
  CLARY_FLOAT64 = 1,
  CLARY_FLOAT16 = 2,
  CLARY_BFLOAT16 = 3,
  CLARY_INT8 = 4,
  CLARY_INT16 = 5,
  CLARY_INT32 = 6,
  CLARY_INT64 = 7,
  CLARY_UINT8 = 8,
  CLARY_BOOL = 9,
};

// AVG is defined on floating types, BAND, BOR and BXOR on integers and bool. On bool SUM and MAX mean "or",
// PRODUCT and MIN mean "and".
enum clary_reduce_op {
  CLARY_SUM = 0,
  CLARY_AVG = 1,
  CLARY_MIN = 2,
  CLARY_MAX = 3,
  CLARY_PRODUCT = 4,
  CLARY_BAND = 5,
  CLARY_BOR = 6,
  CLARY_BXOR = 7,
};

enum clary_collective {
  CLARY_ALL_REDUCE = 0,
  CLARY_ALL_GATHER = 1,
  CLARY_REDUCE_SCATTER = 2,
  CLARY_BROADCAST = 3,
  CLARY_REDUCE = 4,
  CLARY_ALL_TO_ALL = 5,
  CLARY_GATHER = 6,
  CLARY_SCATTER = 7,
  CLARY_BARRIER = 8,
  CLARY_SEND = 9,
  CLARY_RECEIVE = 10,
};

// What ended an operation. After anything but INVALID the communicator is poisoned: each later call fails at once with
// the first cause, and so do those of its peers.
enum clary_code {
  CLARY_OK = 0,
  CLARY_INVALID = 1,         // a bad argument; nothing was sent, the communicator is as before
  CLARY_TIMEOUT = 2,         // the deadline passed while a peer was waited for
  CLARY_PEER_LOST = 3,       // a peer's process ended or its connection broke
  CLARY_ORDER_MISMATCH = 4,  // peers called different collectives
  CLARY_CLOSED = 5,          // the communicator was closed here, or a rank aborted the group
  CLARY_SYSTEM = 6,          // the operating system refused something
};

// How the ranks lie and what connects them. Arrays are copied; descriptors are taken over, also on failure.
typedef struct clary_group {
  uint32_t abi_version;  // CLARY_ABI_VERSION
  int32_t rank;          // of the caller, in 0..size-1
  int32_t size;
  const char* name;               // of the group, for messages
  const int32_t* host_of_rank;    // `size` indices of hosts, 0..hosts-1, in order of first appearance by rank
  const char* const* host_names;  // one a host
  int32_t segment_fd;             // memory shared by the ranks of this host, zeroed; -1 if alone on it
  uint64_t segment_bytes;         // its size: clary_segment_bytes(ranks of this host, slot_bytes)
  uint64_t slot_bytes;            // one staging slot of one rank, 64 bytes a rank or more; the same on all ranks
  const int32_t* lane_fds;        // `size` stream sockets for collectives, -1 for ranks of this host and itself
  const int32_t* side_fds;        // `size` stream sockets for send, receive and bad news; -1 for itself
  double timeout_s;               // limit of one operation where the call names none
  double link_latency_s;          // of the link between hosts, for the choice of algorithms; equal on all ranks
  double link_bytes_per_s;
  const char* algorithm;  // NULL or "" lets the cost model choose; else the name of one
} clary_group;

typedef struct clary_communicator clary_communicator;

// Why a call failed. Text is UTF-8, a sentence or more, always terminated.
typedef struct clary_failure {
  int32_t code;     // clary_code
  int32_t culprit;  // rank to blame, -1 if none
  char text[1024];
} clary_failure;

uint64_t clary_segment_bytes(int32_t ranks_on_host, uint64_t slot_bytes);
const char* clary_instruction_set(void);  // "avx512", "avx2" or "baseline": what the reductions run on

// NULL on failure.
clary_communicator* clary_create(const clary_group* group, clary_failure* failure);

// Have each operation from now on written to `rows`, of which there are `num_rows`, for readers in other processes; see
// src/clary/contract/collective_records.py. Before the first operation; the memory must outlive the communicator.
void clary_record(clary_communicator* communicator, void* rows, int32_t num_rows);

// Tell peers that this rank leaves, end its threads, close its descriptors. Pending operations fail with CLOSED.
void clary_destroy(clary_communicator* communicator);

// Poison the communicator on all ranks with `reason`.
void clary_abort(clary_communicator* communicator, const char* reason);

// Collectives. They return 0 when done, a ticket > 0 when `asynchronous` and not done yet, and -clary_code on failure,
// with `failure` filled. `timeout_s` <= 0 means the group's. Buffers may be equal (in place) but not overlap otherwise.
// Where `inputs` or `outputs` name one address a rank, chunks lie apart; else pass NULL and one contiguous buffer.
// Lists of addresses and counts are copied by the call; buffers stay the caller's until the operation has ended.
int64_t clary_all_reduce(clary_communicator*, const void* input, void* output, uint64_t count, int32_t dtype,
                         int32_t op, int32_t asynchronous, double timeout_s, clary_failure*);
int64_t clary_all_gather(clary_communicator*, const void* input, void* output, void* const* outputs, uint64_t count,
                         int32_t dtype, int32_t asynchronous, double timeout_s, clary_failure*);
int64_t clary_reduce_scatter(clary_communicator*, const void* input, const void* const* inputs, void* output,
                             uint64_t count, int32_t dtype, int32_t op, int32_t asynchronous, double timeout_s,
                             clary_failure*);
int64_t clary_broadcast(clary_communicator*, void* buffer, uint64_t count, int32_t dtype, int32_t root,
                        int32_t asynchronous, double timeout_s, clary_failure*);
// Only the root's output is written; others may pass NULL.
int64_t clary_reduce(clary_communicator*, const void* input, void* output, uint64_t count, int32_t dtype, int32_t op,
                     int32_t root, int32_t asynchronous, double timeout_s, clary_failure*);
// `send_counts` and `receive_counts` hold `size` element counts each; NULL means `count` to and from every rank.
int64_t clary_all_to_all(clary_communicator*, const void* input, const void* const* inputs, const uint64_t* send_counts,
                         void* output, void* const* outputs, const uint64_t* receive_counts, uint64_t count,
                         int32_t dtype, int32_t asynchronous, double timeout_s, clary_failure*);
int64_t clary_gather(clary_communicator*, const void* input, void* output, void* const* outputs, uint64_t count,
                     int32_t dtype, int32_t root, int32_t asynchronous, double timeout_s, clary_failure*);
int64_t clary_scatter(clary_communicator*, const void* input, const void* const* inputs, void* output, uint64_t count,
                      int32_t dtype, int32_t root, int32_t asynchronous, double timeout_s, clary_failure*);
int64_t clary_barrier(clary_communicator*, int32_t asynchronous, double timeout_s, clary_failure*);

// Point to point: matched by peer and tag, in order for equal tags, independent of collectives. Always asynchronous:
// they return a ticket > 0 or -code. `peer` -1 receives from any rank; clary_wait then tells which.
int64_t clary_send(clary_communicator*, const void* buffer, uint64_t bytes, int32_t peer, int64_t tag, double timeout_s,
                   clary_failure*);
int64_t clary_receive(clary_communicator*, void* buffer, uint64_t bytes, int32_t peer, int64_t tag, double timeout_s,
                      clary_failure*);

// Wait for a ticket: 0 when done, -code when it failed, -CLARY_TIMEOUT with culprit -1 and an empty text when `limit_s`
// passed first (the operation goes on). `limit_s` < 0 waits as long as the operation's own deadline lets it.
// `source` may be NULL; a receive from any rank writes its peer there. A ticket is forgotten once it was told.
int64_t clary_wait(clary_communicator*, int64_t ticket, double limit_s, int32_t* source, clary_failure*);

// 1 when the ticket's operation has ended (well or not), 0 when it is under way. Does not forget it.
int32_t clary_is_done(clary_communicator*, int64_t ticket);

// Wait until an operation that `clary_watch` named has ended; its ticket, 0 when `limit_s` passed, or -1 once the
// communicator was destroyed or is being destroyed. One thread at a time.
void clary_watch(clary_communicator*, int64_t ticket);
int64_t clary_next_watched(clary_communicator*, double limit_s);

// The choice of the cost model for a collective of `bytes`, as one line: algorithm, rails, segment, predicted seconds,
// and the reason. For people and tests; writes at most `capacity` bytes with the terminator.
void clary_explain(clary_communicator*, int32_t collective, uint64_t bytes, char* text, uint64_t capacity);

// Counters since creation, in order: operations, bytes reduced, bytes sent on lanes, bytes received on lanes, futex
// sleeps, futex wakes, operations run in the caller's thread, bytes read from other processes' memory. Writes at most
// `capacity` values, returns how many.
int32_t clary_counters(clary_communicator*, uint64_t* values, int32_t capacity);

#ifdef __cplusplus
}
#endif
#endif
