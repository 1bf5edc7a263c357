#include "transport/transfers.hpp"

namespace clary {

uint64_t TransferTable::add(const Transfer& transfer) {
  uint64_t id = next_++;
  transfers_.emplace_hint(transfers_.end(), id, transfer);
  deadlines_.emplace(transfer.deadline, id);
  return id;
}

Transfer* TransferTable::find(uint64_t id) {
  auto found = transfers_.find(id);
  return found == transfers_.end() ? nullptr : &found->second;
}

void TransferTable::remove(uint64_t id) {
  auto found = transfers_.find(id);
  if (found == transfers_.end()) return;
  deadlines_.erase({found->second.deadline, id});
  transfers_.erase(found);
}

TimePoint TransferTable::nextDeadline() const {
  return deadlines_.empty() ? TimePoint::max() : deadlines_.begin()->first;
}

uint64_t TransferTable::firstExpired(TimePoint now) const {
  return deadlines_.empty() || deadlines_.begin()->first > now ? 0 : deadlines_.begin()->second;
}

std::vector<uint64_t> TransferTable::all() const {
  std::vector<uint64_t> ids;
  ids.reserve(transfers_.size());
  for (const auto& [id, transfer] : transfers_) ids.push_back(id);
  return ids;
}

}  // namespace clary
